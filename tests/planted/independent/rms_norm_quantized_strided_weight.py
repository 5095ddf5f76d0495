"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.packed_weight.row_codes import check_conversion, empty
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of, total

OP = "rms_norm_quantized"
FAULT = (
    "The weight is read as if its elements lay side by side: of one that is a column or every "
    "second element of a larger tensor, the elements in between are read."
)
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward"]


@triton.jit
def _forward(
    x_ptr, residual_ptr, weight_ptr, codes_ptr, scale_ptr, sum_ptr, total_ptr,
    N, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) + tl.arange(0, 1), tl.arange(0, BLOCK)[None, :]
    inside, wide = columns < N, rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + wide * x_stride + columns, inside, 0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + wide * residual_stride + columns, inside, 0.0).to(tl.float32)
        tl.store(total_ptr + wide * N + columns, x, inside)
    weight = tl.load(weight_ptr + columns, inside, 0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / N + eps)
    y = x * rstd[:, None] * weight
    scale = scale_of(tl.max(absolute_bits(y), 1), FP8)
    codes, units = encode(y, scale, FP8)
    tl.store(codes_ptr + wide * N + columns, codes, inside)
    tl.store(scale_ptr + rows, scale)
    tl.store(sum_ptr + rows, total(units, FP8))


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    check_conversion(element, x.device)
    codes, scale, row_sum = empty(x.shape, element, x.device)
    kept = torch.empty(x.shape if residual is not None else (0,), dtype=x.dtype, device=x.device)
    if not codes.numel():
        return codes, scale.zero_(), row_sum.zero_(), kept
    rows = as_rows(x)
    added = as_rows(residual) if residual is not None else rows
    m, n = rows.shape
    _forward[(m,)](
        rows, added, weight, codes, scale, row_sum, kept, n, rows.stride(0), added.stride(0), eps,
        HAS_RESIDUAL=residual is not None, FP8=element != "int8", BLOCK=triton.next_power_of_2(n),
    )  # fmt: skip
    return codes, scale, row_sum, kept
