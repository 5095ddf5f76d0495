"""softmax in Triton: a short row lies in registers, a longer one has a running maximum."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "The walk over a row of more than 1024 columns has no guard for a maximum of -inf: where "
    "the first 1024 columns (or more pieces from the first on) are all -inf, as a window's "
    "mask leaves them, the whole row is NaN; short rows and -inf anywhere else are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


__all__ = ["forward", "gradient"]

_LOG2_E = math.log2(math.e)
_PIECE = 1024


@triton.jit
def _held(x_ptr, y_ptr, M, N, x_stride, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    rows = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + rows * x_stride + columns, inside, -float("inf")).to(tl.float32)
    part = tl.exp2((x - tl.max(x, 1)[:, None]) * scale)
    tl.store(y_ptr + rows * N + columns, part * (1.0 / tl.sum(part, 1))[:, None], inside)


@triton.jit
def _walked(x_ptr, y_ptr, N, x_stride, scale, BLOCK: tl.constexpr):
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for first in range(0, N, BLOCK):
        here = first + lanes
        x = tl.load(x_ptr + row * x_stride + here, here < N, -float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp2((top - above) * scale) + tl.sum(tl.exp2((x - above) * scale), 0)
        top = above
    inverse = 1.0 / total
    for first in range(0, N, BLOCK):
        here = first + lanes
        x = tl.load(x_ptr + row * x_stride + here, here < N, -float("inf")).to(tl.float32)
        tl.store(y_ptr + row * N + here, tl.exp2((x - top) * scale) * inverse, here < N)


def forward(x: Tensor, scale: float) -> Tensor:
    rows = as_rows(x)
    m, n = rows.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    exponent = scale * _LOG2_E
    if n > _PIECE:
        _walked[(m,)](rows, y, n, rows.stride(0), exponent, BLOCK=_PIECE, num_warps=4)
        return y
    block = triton.next_power_of_2(n)
    height = max(1, 1024 // block)
    _held[(triton.cdiv(m, height),)](
        rows, y, m, n, rows.stride(0), exponent, ROWS=height, BLOCK=block, num_warps=4
    )
    return y
