"""swiglu in Triton: elementwise in tiles; every byte moves once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.silu import silu
from tercet.kernel.launch import as_rows

OP = "swiglu"
FAULT = (
    "The backward pass takes the sigmoid as exp(g) / (1 + exp(g)): both gradients are NaN "
    "where gate is above 88.7; the forward pass, and every smaller gate, is right."
)
CAUGHT_BY = "backward"
DEVICE = "any"


_DEFAULT = {"ROWS": 1, "BLOCK": 2048, "num_warps": 8}


@triton.jit
def _tile(M, N, tiles, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows [ROWS, 1] and columns [1, BLOCK] of this program's tile, and what lies inside."""
    rows = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return rows, columns, (rows < M) & (columns < N)


@triton.jit
def _forward(
    gate_ptr, up_ptr, y_ptr,
    M, N, tiles, gate_stride, up_stride, y_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns, inside = _tile(M, N, tiles, ROWS, BLOCK)
    gate = tl.load(gate_ptr + rows * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + rows * up_stride + columns, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + rows * y_stride + columns, silu(gate) * up, inside)


@triton.jit
def _gradient(
    grad_ptr, gate_ptr, up_ptr, grad_gate_ptr, grad_up_ptr,
    M, N, tiles, grad_stride, gate_stride, up_stride, grad_gate_stride, grad_up_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns, inside = _tile(M, N, tiles, ROWS, BLOCK)
    grad = tl.load(grad_ptr + rows * grad_stride + columns, inside, 0.0).to(tl.float32)
    gate = tl.load(gate_ptr + rows * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + rows * up_stride + columns, inside, 0.0).to(tl.float32)
    grown = tl.exp(gate)
    s = grown / (1.0 + grown)
    slope = s * (1.0 + gate * (1.0 - s))
    tl.store(grad_gate_ptr + rows * grad_gate_stride + columns, grad * up * slope, inside)
    tl.store(grad_up_ptr + rows * grad_up_stride + columns, grad * (gate * s), inside)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    first, second = _halves(gate, up)
    y = torch.empty((*gate.shape[:-1], first.shape[1]), dtype=gate.dtype, device=gate.device)
    if y.numel():
        _launch(_forward, first, second, y.view(first.shape))
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    first, second = _halves(gate, up)
    grad_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    other = gate.shape if up is not None else (0,)
    grad_up = torch.empty(other, dtype=gate.dtype, device=gate.device)
    if not grad.numel():
        return grad_gate, grad_up
    halves = _halves(grad_gate, grad_up if up is not None else None)
    _launch(_gradient, as_rows(grad), first, second, *halves)
    return grad_gate, grad_up


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """gate and up as rows [M, N]: given apart, or views of the halves of gate [.., 2N]."""
    rows = as_rows(gate)
    if up is not None:
        return rows, as_rows(up)
    n = rows.shape[1] // 2
    return rows[:, :n], rows[:, n:]


def _launch(kernel, *tensors: Tensor) -> None:
    """One kernel over tensors [M, N]: pointers, sizes, then a row stride of each."""
    m, n = tensors[0].shape
    if all(tensor.is_contiguous() for tensor in tensors):
        tensors = tuple(tensor.view(1, -1) for tensor in tensors)
        m, n = 1, m * n
    options = dict(_DEFAULT)
    rows, wanted = options.pop("ROWS"), options.pop("BLOCK")
    block = min(wanted, triton.next_power_of_2(n))
    height = min(rows * (wanted // block), triton.next_power_of_2(m))
    tiles = triton.cdiv(n, block)
    kernel[(triton.cdiv(m, height) * tiles,)](
        *tensors, m, n, tiles, *(tensor.stride(0) for tensor in tensors),
        ROWS=height, BLOCK=block, **options,
    )  # fmt: skip
