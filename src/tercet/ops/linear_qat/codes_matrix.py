"""Codes matrix: int8 codes transposed, or decoded, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows

_BLOCK = 4096
_SIDE = 64


@triton.jit
def _transpose(in_ptr, out_ptr, ROWS, COLUMNS, stride, SIDE: tl.constexpr):
    """out [COLUMNS, ROWS] of int8 in [ROWS, COLUMNS]."""
    r = tl.program_id(0).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    c = tl.program_id(1).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    tile = tl.load(
        in_ptr + r[:, None] * stride + c[None, :], (r < ROWS)[:, None] & (c < COLUMNS)[None, :], 0
    )
    inside = (c < COLUMNS)[:, None] & (r < ROWS)[None, :]
    tl.store(out_ptr + c[:, None] * ROWS + r[None, :], tl.trans(tile), inside)


@triton.jit
def _dequantized(codes_ptr, scale_ptr, out_ptr, COUNT, K, BLOCK: tl.constexpr):
    """out = codes [M, K] * scale [M], of COUNT elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < COUNT
    scale = tl.load(scale_ptr + at // K, inside, 0.0)
    tl.store(out_ptr + at, tl.load(codes_ptr + at, inside, 0).to(tl.float32) * scale, inside)


def transpose(codes: Tensor) -> Tensor:
    """codes [R, C] int8 as [C, R], contiguous."""
    rows, (r, c) = as_rows(codes), codes.shape
    out = torch.empty((c, r), dtype=codes.dtype, device=codes.device)
    side = 128 if interpreting() else _SIDE
    if out.numel():
        _transpose[(triton.cdiv(r, side), triton.cdiv(c, side))](
            rows, out, r, c, rows.stride(0), SIDE=side, num_warps=4
        )
    return out


def decoded(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """codes [M, K] * scale [M] in dtype."""
    rows = codes.contiguous()
    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    if out.numel():
        count = out.numel()
        _dequantized[(triton.cdiv(count, _BLOCK),)](
            rows, scale, out, count, rows.shape[1], BLOCK=_BLOCK, num_warps=8
        )
    return out
