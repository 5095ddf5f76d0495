"""The gradients of a gate's two products, and their codes, in one pass over rows, in Triton.

Programs walk over rows. Of a row they read grad, gate and up, write both gradients and, once the
largest of the row is known, both rows of codes, so that nobody reads the gradients again for them:
13 bytes an element, where the gradients alone take 10 and their codes 3 each. Each program keeps
the largest of each column in registers: so the columns' scales are known when the rows are done.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.row_quantizer import absolute_bits, encode, scale_of
from tercet.kernel.device.silu import sigmoid
from tercet.kernel.launch import multiprocessors

# a row's numbers and the largest of each column lie in registers
WIDEST = 8192
_STAGES = 2
# numbers that a program takes at a time
_BLOCK = 4096
# of the programs' largest, at a time: rows, columns
_PARTS, _WIDE = 16, 128


@triton.jit
def _coded(
    made, by_ptr, codes_ptr, size_ptr, rows, columns, M, N,
    ONE: tl.constexpr,
):  # fmt: skip
    """Writes int8 codes and scales of the rows [ROWS, BLOCK] of made * by."""
    by = tl.load(by_ptr + (columns * 0 if ONE else columns), columns < N, 0.0)
    h = made * by[None, :]
    size = scale_of(tl.max(absolute_bits(h), 1), False)
    codes, _ = encode(h, size, False)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(codes_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :], codes, inside)
    tl.store(size_ptr + rows, size, rows < M)


@triton.jit
def _rows(
    grad_ptr, gate_ptr, up_ptr, gate_by_ptr, up_by_ptr, row_ptr,
    to_gate_ptr, to_up_ptr, gate_codes_ptr, up_codes_ptr, gate_size_ptr, up_size_ptr, top_ptr,
    M, N, grad_stride, gate_stride, up_stride,
    ONE_GATE: tl.constexpr, ONE_UP: tl.constexpr, TOPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    gate_top = tl.zeros((ROWS, BLOCK), tl.int32)
    up_top = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        at = rows.to(tl.int64)[:, None]
        n = columns[None, :]
        grad = tl.load(grad_ptr + at * grad_stride + n, inside, 0.0).to(tl.float32)
        gate = tl.load(gate_ptr + at * gate_stride + n, inside, 0.0).to(tl.float32)
        up = tl.load(up_ptr + at * up_stride + n, inside, 0.0).to(tl.float32)
        part = sigmoid(gate)
        to_up = (grad * (gate * part)).to(to_up_ptr.dtype.element_ty)
        slope = part + gate * part * (1.0 - part)
        to_gate = (grad * up * slope).to(to_gate_ptr.dtype.element_ty)
        tl.store(to_up_ptr + at * N + n, to_up, inside)
        tl.store(to_gate_ptr + at * N + n, to_gate, inside)
        # codes are those of the gradients as they are written
        to_up, to_gate = to_up.to(tl.float32), to_gate.to(tl.float32)
        if TOPS:
            row = tl.load(row_ptr + rows, rows < M, 0.0)[:, None]
            up_top = tl.maximum(up_top, absolute_bits(to_up * row))
            gate_top = tl.maximum(gate_top, absolute_bits(to_gate * row))
        _coded(to_up, up_by_ptr, up_codes_ptr, up_size_ptr, rows, columns, M, N, ONE_UP)
        _coded(to_gate, gate_by_ptr, gate_codes_ptr, gate_size_ptr, rows, columns, M, N, ONE_GATE)
    if TOPS:
        mine = top_ptr + tl.program_id(0).to(tl.int64) * 2 * N + columns
        tl.store(mine, tl.max(gate_top, 0), columns < N)
        tl.store(mine + N, tl.max(up_top, 0), columns < N)


@triton.jit
def _columns(
    top_ptr, gate_size_ptr, up_size_ptr, programs, N,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The columns' scales [N] of gate (0 in the second place of the grid) or up."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    top_ptr += tl.program_id(1) * N
    bits = tl.zeros((PARTS, BLOCK), tl.int32)
    for first in range(0, programs, PARTS):
        part = first + tl.arange(0, PARTS)[:, None]
        inside = (part < programs) & (columns < N)
        bits = tl.maximum(bits, tl.load(top_ptr + part.to(tl.int64) * 2 * N + columns, inside, 0))
    size = scale_of(tl.max(bits, 0, keep_dims=True), False)
    if tl.program_id(1) == 0:
        tl.store(gate_size_ptr + columns, size, columns < N)
    else:
        tl.store(up_size_ptr + columns, size, columns < N)


def gate_gradient(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None,
) -> tuple[Tensor, ...]:
    """As linear_qat's gate_gradient, of matrices of up to WIDEST columns, rows contiguous."""
    (m, n), device = grad.shape, grad.device
    to_gate, to_up = (torch.empty((m, n), dtype=grad.dtype, device=device) for _ in range(2))
    gate_codes, up_codes = (torch.empty((m, n), dtype=torch.int8, device=device) for _ in range(2))
    gate_size, up_size = (torch.empty(m, dtype=torch.float32, device=device) for _ in range(2))
    coded = n if x_scale is not None else 0
    gate_columns, up_columns = (
        torch.empty(coded, dtype=torch.float32, device=device) for _ in range(2)
    )
    block = triton.next_power_of_2(n)
    rows = min(max(1, _BLOCK // block), triton.next_power_of_2(m))
    programs = min(triton.cdiv(m, rows), multiprocessors(device))
    top = torch.empty((programs, 2, coded), dtype=torch.int32, device=device)
    _rows[(programs,)](
        grad, gate, up, gate_scale, up_scale, x_scale,
        to_gate, to_up, gate_codes, up_codes, gate_size, up_size, top,
        m, n, grad.stride(0), gate.stride(0), up.stride(0),
        ONE_GATE=gate_scale.numel() == 1, ONE_UP=up_scale.numel() == 1,
        TOPS=x_scale is not None, ROWS=rows, BLOCK=block, STAGES=_STAGES,
        num_warps=min(max(rows * block // 512, 4), 16),
    )  # fmt: skip
    if x_scale is not None:
        _columns[(triton.cdiv(n, _WIDE), 2)](
            top, gate_columns, up_columns, programs, n, PARTS=_PARTS, BLOCK=_WIDE, num_warps=4
        )
    return to_gate, to_up, gate_codes, gate_size, up_codes, up_size, gate_columns, up_columns
