"""A right kernel; UNUSUAL says how it is unusual."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows

OP = "swiglu"
UNUSUAL = (
    "Few programs, each walks over whole rows in pieces of 128 columns from the last to the "
    "first; the sigmoid is made of exp(-|gate|) by sign; the gradients are two launches of "
    "one kernel."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_BLOCK, _PROGRAMS = 128, 5


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, small, 1.0) / (1.0 + small)


@triton.jit
def _walk(
    grad_ptr, gate_ptr, up_ptr, out_ptr, M, N, grad_stride, gate_stride, up_stride, out_stride,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KIND 0: y; 1: the gradient of gate; 2: of up."""
    for number in range(tl.program_id(0), M, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + (M - 1 - number)
        for back in range(0, N, BLOCK):
            columns = (N - 1) // BLOCK * BLOCK - back + tl.arange(0, BLOCK)
            inside = columns < N
            gate = tl.load(gate_ptr + row * gate_stride + columns, inside, 0.0).to(tl.float32)
            s = _sigmoid(gate)
            if KIND == 2:
                value = gate * s
            else:
                up = tl.load(up_ptr + row * up_stride + columns, inside, 0.0).to(tl.float32)
                value = (s + gate * s * _sigmoid(-gate)) * up if KIND == 1 else gate * s * up
            if KIND != 0:
                value *= tl.load(grad_ptr + row * grad_stride + columns, inside, 0.0).to(tl.float32)
            tl.store(out_ptr + row * out_stride + columns, value, inside)


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = as_rows(gate)
    if up is not None:
        return rows, as_rows(up)
    n = rows.shape[1] // 2
    return rows[:, :n], rows[:, n:]


def _launch(kind: int, grad: Tensor, gate: Tensor, up: Tensor, out: Tensor) -> None:
    m, n = gate.shape
    _walk[(min(m, _PROGRAMS),)](
        grad, gate, up, out, m, n, grad.stride(0), gate.stride(0), up.stride(0), out.stride(0),
        KIND=kind, BLOCK=_BLOCK, num_warps=1,
    )  # fmt: skip


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    first, second = _halves(gate, up)
    y = torch.empty((*gate.shape[:-1], first.shape[1]), dtype=gate.dtype, device=gate.device)
    if y.numel():
        _launch(0, first, first, second, y.view(first.shape))
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    first, second = _halves(gate, up)
    grad_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    other = gate.shape if up is not None else (0,)
    grad_up = torch.empty(other, dtype=gate.dtype, device=gate.device)
    if grad.numel():
        grads = as_rows(grad)
        of_gate, of_up = _halves(grad_gate, grad_up if up is not None else None)
        _launch(1, grads, first, second, of_gate)
        _launch(2, grads, first, second, of_up)
    return grad_gate, grad_up
