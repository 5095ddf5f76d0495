"""rms_norm_quantized in Triton: a row lies in registers from the load to the codes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.packed_weight.row_codes import check_conversion, empty
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of, total

OP = "rms_norm_quantized"
FAULT = (
    "X + residual is rounded to x's dtype before it is normalized (as the norm and the "
    "addition apart would have it), so codes and scales are off in float16 and bfloat16 with "
    "a residual; float32 or no residual is right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


@triton.jit
def _forward(
    x_ptr, residual_ptr, weight_ptr, codes_ptr, scale_ptr, sum_ptr, total_ptr,
    M, N, x_stride, residual_stride, eps,
    HAS_RESIDUAL: tl.constexpr, FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0).to(tl.float32)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    wide = rows.to(tl.int64)[:, None]
    out = wide * N + columns[None, :]
    x = tl.load(x_ptr + wide * x_stride + columns[None, :], inside, 0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = wide * residual_stride + columns[None, :]
        x += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
        kept = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + out, kept, inside)
        x = kept.to(tl.float32)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / N + eps)
    y = x * rstd[:, None] * weight[None, :]
    scale = scale_of(tl.max(absolute_bits(y), 1), FP8)
    codes, units = encode(y, scale, FP8)
    tl.store(codes_ptr + out, codes, inside)
    tl.store(scale_ptr + rows, scale, rows < M)
    tl.store(sum_ptr + rows, total(units, FP8), rows < M)


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
    m, n = rows.shape
    added = as_rows(residual) if residual is not None else rows
    block = triton.next_power_of_2(n)
    options = {"ROWS": max(1, 1024 // block), "num_warps": min(max(block // 512, 4), 16)}
    height = min(options.pop("ROWS"), triton.next_power_of_2(m))
    _forward[(triton.cdiv(m, height),)](
        rows, added, weight.contiguous(), codes, scale, row_sum, kept,
        m, n, rows.stride(0), added.stride(0), eps,
        HAS_RESIDUAL=residual is not None, FP8=element != "int8", ROWS=height, BLOCK=block,
        **options,
    )  # fmt: skip
    return codes, scale, row_sum, kept
