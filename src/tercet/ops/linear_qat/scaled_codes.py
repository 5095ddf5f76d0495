"""Scaled codes: a gradient times its columns' or its rows' scales, as int8 codes, in Triton.

What an integer product of a gradient needs: the scales that do not run along the sum are folded in
before it is quantized, each row (or each column, transposed) with a scale of its own. The codes are
those of `row_codes`, to the bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.random_uniform import coarse_uniform
from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import multiprocessors
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, ratio_to, scale_of

_HELD = 16384
_BLOCK = 4096
_SIDE = 64


@triton.jit
def _scaled(grad_ptr, column_ptr, rows, columns, M, N, stride, ONE_COLUMN: tl.constexpr):
    """grad * column [ROWS, BLOCK], float32; whether each element exists."""
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    column = tl.load(column_ptr + (columns * 0 if ONE_COLUMN else columns), columns < N, 0.0)
    return tl.load(grad_ptr + at, inside, 0.0).to(tl.float32) * column[None, :], inside


@triton.jit
def _scaled_rows(
    grad_ptr, column_ptr, codes_ptr, scale_ptr, M, N, stride,
    ONE_COLUMN: tl.constexpr, HELD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """int8 codes and scale of each row of grad [M, N] * column [N], held or read twice."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = codes_ptr + rows.to(tl.int64)[:, None] * N
    within = tl.arange(0, BLOCK)
    if HELD:
        h, inside = _scaled(grad_ptr, column_ptr, rows, within, M, N, stride, ONE_COLUMN)
        scale = scale_of(tl.max(absolute_bits(h), 1), False)
        codes, _ = encode(h, scale, False)
        tl.store(out + within[None, :], codes, inside)
    else:
        bits = tl.zeros((ROWS, BLOCK), tl.int32)
        for first in range(0, N, BLOCK):
            h, _ = _scaled(grad_ptr, column_ptr, rows, first + within, M, N, stride, ONE_COLUMN)
            bits = tl.maximum(bits, absolute_bits(h))
        scale = scale_of(tl.max(bits, 1), False)
        for first in range(0, N, BLOCK):
            columns = first + within
            h, inside = _scaled(grad_ptr, column_ptr, rows, columns, M, N, stride, ONE_COLUMN)
            codes, _ = encode(h, scale, False)
            tl.store(out + columns[None, :], codes, inside)
    tl.store(scale_ptr + rows, scale, rows < M)


@triton.jit
def _token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride):
    """(grad * x_scale)^T [n, m], float32."""
    inside = (m < M)[:, None] & (n < N)[None, :]
    grad = tl.load(grad_ptr + m.to(tl.int64)[:, None] * stride + n[None, :], inside, 0.0)
    scaled = grad.to(tl.float32) * tl.load(x_scale_ptr + m, m < M, 0.0)[:, None]
    return tl.trans(tl.where(inside, scaled, 0.0))


@triton.jit
def _column_parts(
    grad_ptr, x_scale_ptr, part_ptr, M, N, stride, rows,
    SIDE: tl.constexpr,
):  # fmt: skip
    """part [P, N]: the largest bit pattern of grad * x_scale in `rows` rows of each column."""
    n = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    start = tl.program_id(1) * rows
    bits = tl.zeros((SIDE, SIDE), tl.int32)
    for first in range(start, tl.minimum(start + rows, M), SIDE):
        m = first + tl.arange(0, SIDE)
        bits = tl.maximum(
            bits, absolute_bits(_token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride))
        )
    at = tl.program_id(1).to(tl.int64) * N + n
    tl.store(part_ptr + at, tl.max(bits, 1), n < N)


@triton.jit
def _column_codes(
    grad_ptr, x_scale_ptr, part_ptr, seed_ptr, codes_ptr, scale_ptr, M, N, stride, parts,
    RANDOM: tl.constexpr, PARTS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """codes [N, M] of the columns of grad * x_scale, and their scales [N]."""
    n = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    m = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    part = tl.arange(0, PARTS)
    known = (n < N)[:, None] & (part < parts)[None, :]
    bits = tl.load(part_ptr + part.to(tl.int64)[None, :] * N + n[:, None], known, 0)
    scale = scale_of(tl.max(bits, 1), False)
    tl.store(scale_ptr + n, scale, (n < N) & (tl.program_id(1) == 0))
    h = _token_tile(grad_ptr, x_scale_ptr, m, n, M, N, stride)
    if RANDOM:
        ratio = tl.clamp(ratio_to(h, scale), -127.0, 127.0)
        start = n * 0 + tl.program_id(1) * SIDE
        number = coarse_uniform(tl.load(seed_ptr), n, start, tl.cdiv(M, 8), SIDE)
        codes = tl.floor(ratio + number).to(tl.int32).to(tl.int8)
    else:
        codes, _ = encode(h, scale, False)
    at = n.to(tl.int64)[:, None] * M + m[None, :]
    tl.store(codes_ptr + at, codes, (n < N)[:, None] & (m < M)[None, :])


def coded_rows(grads: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [M, N] and scales [M] of grad * scale, per token."""
    m, n = grads.shape
    codes = torch.empty((m, n), dtype=torch.int8, device=grads.device)
    size = torch.empty(m, dtype=torch.float32, device=grads.device)
    if not codes.numel():
        return codes, size.zero_()
    wanted = triton.next_power_of_2(n)
    held = wanted <= (128 if interpreting() else _HELD)
    block = wanted if held else min(wanted, _BLOCK)
    rows = max(1, min((1 << 14 if interpreting() else 1024) // block, triton.next_power_of_2(m)))
    _scaled_rows[(triton.cdiv(m, rows),)](
        grads, scale.contiguous(), codes, size, m, n, grads.stride(0),
        ONE_COLUMN=scale.numel() == 1, HELD=held, ROWS=rows, BLOCK=block,
        num_warps=min(max(block // 512, 4), 32),
    )  # fmt: skip
    return codes, size


def coded_columns(grads: Tensor, x_scale: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes [N, M] and scales [N] of the columns of grad * x_scale."""
    m, n = grads.shape
    codes = torch.empty((n, m), dtype=torch.int8, device=grads.device)
    size = torch.empty(n, dtype=torch.float32, device=grads.device)
    if not codes.numel():
        return codes, size.zero_()
    side = 128 if interpreting() else _SIDE
    across = triton.cdiv(n, side)
    # enough programs for two on each multiprocessor, none of less than one tile
    parts = max(
        1, min(triton.cdiv(2 * multiprocessors(grads.device), across), triton.cdiv(m, side))
    )
    rows = triton.cdiv(triton.cdiv(m, parts), side) * side
    parts = triton.cdiv(m, rows)
    part = torch.empty((parts, n), dtype=torch.int32, device=grads.device)
    _column_parts[(across, parts)](
        grads, x_scale, part, m, n, grads.stride(0), rows, SIDE=side, num_warps=4
    )
    _column_codes[(across, triton.cdiv(m, side))](
        grads, x_scale, part, seed, codes, size, m, n, grads.stride(0), parts,
        RANDOM=seed is not None, PARTS=triton.next_power_of_2(parts), SIDE=side, num_warps=4,
    )  # fmt: skip
    return codes, size
