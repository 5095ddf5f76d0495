"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.packed_weight.row_codes import Quantized, quantize, row_codes

OP = "quantize_activation"
FAULT = (
    "The scale is the product of max |x| with a float32 1 / 127 (or 1 / 448), which is not the "
    "quotient to the bit: off by one unit in the last place in many rows."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


@triton.jit
def _tops(x_ptr, scale_ptr, K, x_stride, inverse, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    bits = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, K, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, columns < K, 0.0).to(tl.float32)
        bits = tl.maximum(bits, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(scale_ptr + row, tl.max(bits, 0).to(tl.float32, bitcast=True) * inverse)


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    if not x.numel():
        return quantize(x, element)
    rows, kind = as_rows(x), row_codes(element)
    m, k = rows.shape
    scale = torch.empty(m, dtype=torch.float32, device=x.device)
    block = min(1024, triton.next_power_of_2(k))
    _tops[(m,)](rows, scale, k, rows.stride(0), 1.0 / kind.limit, BLOCK=block)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[:, None], rows.float(), 0.0)
    ratio = (ratio / torch.where(usable, scale, 1.0)[:, None]).clamp(-kind.limit, kind.limit)
    if element == "int8":
        codes = ratio.round().to(kind.dtype)
        row_sum = codes.sum(-1, dtype=torch.int32)
    else:
        codes = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio).to(kind.dtype)
        row_sum = codes.float().double().sum(-1).float()
    leading = x.shape[:-1]
    return codes.reshape(x.shape).contiguous(), scale.reshape(leading), row_sum.reshape(leading)
