"""quantize_activation in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, empty

OP = "quantize_activation"
UNUSUAL = (
    "The largest size from the least and the greatest element; integers by rounding down, halves "
    "decided by hand; e4m3 numbers as integer multiples of a power of two; sums as int64."
)
DEVICE = "any"

_LIMITS = {"int8": 127.0, "fp8_e4m3": 448.0}


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    codes, scale, row_sum = empty(x.shape, element, x.device)
    if not x.numel():
        return codes, scale.zero_(), row_sum.zero_()
    wide, limit = x.float(), _LIMITS[element]
    least, greatest = torch.aminmax(wide, dim=-1)
    scale.copy_(torch.maximum(-least, greatest) / torch.full_like(least, limit))
    usable = (scale > 0) & (scale < torch.inf)
    divisor = torch.where(usable, scale, torch.ones_like(scale))[..., None]
    ratio = torch.where(usable[..., None], wide, torch.zeros_like(wide)) / divisor
    ratio = ratio.clamp(-limit, limit)
    if element == "int8":
        found = _nearest(ratio)
        codes.copy_(found)
        row_sum.copy_(found.long().sum(-1))
        return codes, scale, row_sum
    # e4m3: 4 bits from the highest on, the last of them never below 2^-9
    _, exponent = torch.frexp(ratio)
    unit = torch.ldexp(torch.ones_like(ratio), exponent.clamp(min=-5) - 4)
    found = _nearest(ratio / unit) * unit
    found = torch.where(found == 0, torch.zeros_like(found), found)
    codes.copy_(found)
    row_sum.copy_((found * 512).long().sum(-1).double() / 512)
    return codes, scale, row_sum


def _nearest(x: Tensor) -> Tensor:
    """The nearest integer, halves to the even one."""
    low = x.floor()
    rest = x - low
    odd = low - 2 * (low / 2).floor() == 1
    up = (rest > 0.5) | ((rest == 0.5) & odd)
    return low + up.to(x.dtype)
