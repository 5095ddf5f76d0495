"""layer_norm in Triton: short rows lie in registers, longer ones are walked in pieces."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "The variance of a row that is walked (more than 2048 columns) counts the lanes beyond "
    "the row's end in its last piece, each as mean^2: wrong for wide rows that are no "
    "multiple of 1024 and have a mean apart from zero; short rows and whole pieces are right."
)
CAUGHT_BY = "stale"
DEVICE = "any"


__all__ = ["forward", "gradient"]

_HELD, _PIECE = 2048, 1024


@triton.jit
def _held(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, M, N, x_stride, eps,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    at = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + at * x_stride + columns[None, :], inside, 0.0).to(tl.float32)
    mean = tl.sum(x, 1) / N
    # what the first sum rounded off
    mean += tl.sum(tl.where(inside, x - mean[:, None], 0.0), 1) / N
    centered = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centered * centered, 1) / N + eps)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0).to(tl.float32)
    y = centered * rstd[:, None] * weight[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, columns < N, 0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at * N + columns[None, :], y, inside)
    tl.store(mean_ptr + rows, mean, rows < M)
    tl.store(rstd_ptr + rows, rstd, rows < M)


@triton.jit
def _walked(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, N, x_stride, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x_ptr += row * x_stride
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        sums += tl.load(x_ptr + first + lanes, first + lanes < N, 0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / N
    # what the first sum rounded off
    off = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        inside = first + lanes < N
        x = tl.load(x_ptr + first + lanes, inside, 0.0).to(tl.float32)
        off += tl.where(inside, x - mean, 0.0)
    mean += tl.sum(off, 0) / N
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        x = tl.load(x_ptr + first + lanes, first + lanes < N, 0.0).to(tl.float32)
        squares += (x - mean) * (x - mean)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, N, BLOCK):
        columns = first + lanes
        inside = columns < N
        x = tl.load(x_ptr + columns, inside, 0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(weight_ptr + columns, inside, 0.0).to(tl.float32)
        if HAS_BIAS:
            y += tl.load(bias_ptr + columns, inside, 0.0).to(tl.float32)
        tl.store(y_ptr + row * N + columns, y, inside)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    n, rows = x.shape[-1], as_rows(x)
    m = rows.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.empty(m, dtype=torch.float32, device=x.device)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y, mean.fill_(torch.nan), rstd.fill_(torch.nan)
    weight = weight.contiguous()
    tensors = rows, weight, bias.contiguous() if bias is not None else weight, y, mean, rstd
    if n > _HELD:
        _walked[(m,)](
            *tensors, n, rows.stride(0), eps, HAS_BIAS=bias is not None, BLOCK=_PIECE, num_warps=4
        )
        return y, mean, rstd
    block = triton.next_power_of_2(n)
    height = max(1, 2048 // block)
    _held[(triton.cdiv(m, height),)](
        *tensors, m, n, rows.stride(0), eps,
        HAS_BIAS=bias is not None, ROWS=height, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return y, mean, rstd
