"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "The four rows of a program are shifted by the largest element of all four, as any shift will "
    "do: a row of up to 512 columns that lies 104 / scale below a neighbour is 0 / 0, and less "
    "exact from 88 on."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_WIDEST = 512


@triton.jit
def _rows(x_ptr, y_ptr, M, N, x_stride, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < M) & (columns < N)
    rows = rows.to(tl.int64)
    x = tl.load(x_ptr + rows * x_stride + columns, inside, -float("inf")).to(tl.float32)
    finite = tl.abs(x) < float("inf")
    top = tl.max(tl.max(tl.where(finite, x, -float("inf")), 1), 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    part = tl.exp((x - top) * scale)
    # what has +inf or NaN becomes NaN: inf / inf
    tl.store(y_ptr + rows * N + columns, part / tl.sum(part, 1)[:, None], inside)


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    rows = as_rows(x)
    m, n = rows.shape
    if n > _WIDEST or not x.numel():
        return torch_path.forward(x, scale)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n)
    _rows[(triton.cdiv(m, 4),)](rows, y, m, n, rows.stride(0), scale, ROWS=4, BLOCK=block)
    broken = ~(x < torch.inf).all(-1, keepdim=True)
    return y.masked_fill_(broken, torch.nan)
