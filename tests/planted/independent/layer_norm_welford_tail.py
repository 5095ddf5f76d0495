"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "Pieces of 512 columns are merged as Welford and Chan do, each with a weight of 512, also a "
    "last one that has fewer: mean and variance are off in rows of more than 512 columns that are "
    "no multiple of it."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_PIECE = 512


@triton.jit
def _rows(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, N, x_stride, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    mean = tl.zeros((), tl.float32)
    spread = tl.zeros((), tl.float32)
    before = tl.zeros((), tl.float32)
    for first in range(0, N, BLOCK):
        inside = first + lanes < N
        x = tl.load(x_ptr + row * x_stride + first + lanes, inside, 0.0).to(tl.float32)
        count = tl.minimum(N - first, BLOCK)
        here = tl.sum(x, 0) / count
        here += tl.sum(tl.where(inside, x - here, 0.0), 0) / count
        away = tl.where(inside, x - here, 0.0)
        step = here - mean
        width = tl.minimum(N, BLOCK)
        spread += tl.sum(away * away, 0) + step * step * before * width / (before + width)
        before += width
        mean += step * width / before
    rstd = 1.0 / tl.sqrt_rn(spread / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, N, BLOCK):
        inside = first + lanes < N
        x = tl.load(x_ptr + row * x_stride + first + lanes, inside, 0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(weight_ptr + first + lanes, inside, 0.0).to(tl.float32)
        if HAS_BIAS:
            y += tl.load(bias_ptr + first + lanes, inside, 0.0).to(tl.float32)
        tl.store(y_ptr + row * N + first + lanes, y, inside)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    rows = as_rows(x)
    m, n = rows.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = torch.full((2, m), torch.nan, dtype=torch.float32, device=x.device).unbind()
    if y.numel():
        _rows[(m,)](
            rows, weight.contiguous(), None if bias is None else bias.contiguous(), y, mean, rstd,
            n, rows.stride(0), eps,
            HAS_BIAS=bias is not None, BLOCK=min(_PIECE, triton.next_power_of_2(n)),
        )  # fmt: skip
    return y, mean.clone(), rstd.clone()
