"""softmax in Triton, with a fault; written blind."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows

OP = "softmax"
FAULT = (
    "Lanes beyond the row are loaded as 0, so the maximum that is subtracted is at least 0. "
    "Shows where N is no power of two and all of a row lies far below 0 (scale * x under "
    "about -40: less exact; under -104: NaN). Sums and stores are masked."
)
CAUGHT_BY = "forward"


@triton.jit
def _rows(x_ptr, y_ptr, M, N, x_stride, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    rows = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + rows * x_stride + columns, inside, 0.0).to(tl.float32)
    part = tl.exp2((x - tl.max(x, 1)[:, None]) * scale)
    part = tl.where(inside, part, 0.0)
    tl.store(y_ptr + rows * N + columns, part * (1.0 / tl.sum(part, 1))[:, None], inside)


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    rows = as_rows(x)
    m, n = rows.shape
    height = 4 if n <= 512 else 1
    _rows[(triton.cdiv(m, height),)](
        rows,
        y,
        m,
        n,
        rows.stride(0),
        scale * math.log2(math.e),
        ROWS=height,
        BLOCK=triton.next_power_of_2(n),
        num_warps=4,
    )
    return y


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
