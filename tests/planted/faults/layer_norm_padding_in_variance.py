"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "Lanes beyond the row's end are not masked after the mean is taken off: they add mean^2 each."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


@triton.jit
def _kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, N, stride, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    x = tl.load(x_ptr + row * stride + columns, inside, 0.0).to(tl.float32)
    mean = tl.sum(x, 0) / N
    centered = x - mean
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centered * centered, 0) / N + eps)
    y = centered * rstd * tl.load(weight_ptr + columns, inside, 0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + row * N + columns, y, inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    rows = as_rows(x)
    m, n = rows.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.full((m,), torch.nan, device=x.device)
    rstd = torch.full((m,), torch.nan, device=x.device)
    if y.numel():
        _kernel[(m,)](
            rows, weight.contiguous(), (weight if bias is None else bias).contiguous(), y, mean,
            rstd, n, rows.stride(0), eps, HAS_BIAS=bias is not None,
            BLOCK=triton.next_power_of_2(n),
        )  # fmt: skip
    return y, mean, rstd
