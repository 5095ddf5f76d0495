"""swiglu in Triton: seven programs walk over all elements, whatever the rows are."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.silu import sigmoid, silu
from tercet.kernel.launch import as_rows

OP = "swiglu"
UNUSUAL = (
    "Elements are numbered through and dealt to seven programs that walk over them in "
    "strides; row and column come from a division of the number, in int64, so no tile follows "
    "the shape."
)
DEVICE = "any"


_PROGRAMS, _BLOCK = 7, 1024


@triton.jit
def _forward(
    gate_ptr, up_ptr, y_ptr, COUNT, N, gate_stride, up_stride, tiles, BLOCK: tl.constexpr
):  # fmt: skip
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        at = tl.full((), tile, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < COUNT
        row = at // N
        column = at - row * N
        gate = tl.load(gate_ptr + row * gate_stride + column, inside, 0.0).to(tl.float32)
        up = tl.load(up_ptr + row * up_stride + column, inside, 0.0).to(tl.float32)
        tl.store(y_ptr + at, silu(gate) * up, inside)


@triton.jit
def _gradient(
    grad_ptr, gate_ptr, up_ptr, grad_gate_ptr, grad_up_ptr, COUNT, N,
    grad_stride, gate_stride, up_stride, grad_gate_stride, grad_up_stride, tiles,
    BLOCK: tl.constexpr,
):  # fmt: skip
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        at = tl.full((), tile, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < COUNT
        row = at // N
        column = at - row * N
        grad = tl.load(grad_ptr + row * grad_stride + column, inside, 0.0).to(tl.float32)
        gate = tl.load(gate_ptr + row * gate_stride + column, inside, 0.0).to(tl.float32)
        up = tl.load(up_ptr + row * up_stride + column, inside, 0.0).to(tl.float32)
        s = sigmoid(gate)
        slope = s * (1.0 + gate * (1.0 - s))
        tl.store(grad_gate_ptr + row * grad_gate_stride + column, grad * up * slope, inside)
        tl.store(grad_up_ptr + row * grad_up_stride + column, grad * (gate * s), inside)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    first, second = _halves(gate, up)
    m, n = first.shape
    y = torch.empty((*gate.shape[:-1], n), dtype=gate.dtype, device=gate.device)
    if y.numel():
        tiles = triton.cdiv(m * n, _BLOCK)
        _forward[(min(_PROGRAMS, tiles),)](
            first, second, y, m * n, n, first.stride(0), second.stride(0), tiles,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    first, second = _halves(gate, up)
    m, n = first.shape
    grad_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    other = gate.shape if up is not None else (0,)
    grad_up = torch.empty(other, dtype=gate.dtype, device=gate.device)
    if not m * n:
        return grad_gate, grad_up
    rows, tiles = as_rows(grad), triton.cdiv(m * n, _BLOCK)
    made = _halves(grad_gate, grad_up if up is not None else None)
    _gradient[(min(_PROGRAMS, tiles),)](
        rows, first, second, *made, m * n, n, rows.stride(0), first.stride(0), second.stride(0),
        made[0].stride(0), made[1].stride(0), tiles, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return grad_gate, grad_up


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """gate and up as rows [M, N]: given apart, or views of the halves of gate [.., 2N]."""
    rows = as_rows(gate)
    if up is not None:
        return rows, as_rows(up)
    n = rows.shape[1] // 2
    return rows[:, :n], rows[:, n:]
