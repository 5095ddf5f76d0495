"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
UNUSUAL = "Two walks over tiles of 256 columns with a running maximum and a rescaled sum."

__all__ = ["forward", "gradient"]


_BLOCK = 256


@triton.jit
def _kernel(x_ptr, y_ptr, N, stride, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = -float("inf"), 0.0
    for first in range(0, N, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + columns, columns < N, -float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(x, 0))
        base = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp((top - base) * scale) + tl.sum(tl.exp((x - base) * scale), 0)
        top = above
    for first in range(0, N, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + columns, columns < N, -float("inf")).to(tl.float32)
        tl.store(y_ptr + row * N + columns, tl.exp((x - top) * scale) / total, columns < N)


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    rows = as_rows(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        _kernel[(len(rows),)](rows, y, rows.shape[1], rows.stride(0), scale, BLOCK=_BLOCK)
    return y
