"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
UNUSUAL = (
    "Right, but unusual: the largest magnitude is the largest of the bit patterns without "
    "their signs."
)
DEVICE = "any"
__all__ = ["forward"]

_INTEGER = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind = row_codes(element)
    integer = _INTEGER[x.dtype]
    bits = x.contiguous().view(integer) & torch.iinfo(integer).max
    # positive floats are in the order of their patterns, NaN above infinity
    top = bits.new_zeros(x.shape[:-1]) if not x.shape[-1] else bits.amax(-1)
    absmax = top.contiguous().view(x.dtype).float()
    scale = absmax / torch.full_like(absmax, kind.limit)
    usable = (scale > 0) & (scale < torch.inf)
    ratio = x.float() / torch.where(usable, scale, 1.0)[..., None]
    ratio = torch.where(usable[..., None], ratio, 0.0).clamp(-kind.limit, kind.limit)
    if element == "int8":
        codes = ratio.round().to(torch.int8).contiguous()
        # a product with ones, exact in float64
        return codes, scale, codes.double().sum(-1).to(torch.int32)
    codes = _e4m3(ratio)
    return codes.to(kind.dtype).contiguous(), scale, codes.double().flip(-1).sum(-1).float()


def _e4m3(ratio: Tensor) -> Tensor:
    """The nearest e4m3 number, as float32, by rounding to the spacing that it has there."""
    _, exponent = torch.frexp(ratio)
    # three bits behind the first; below 2^-6 numbers are 2^-9 apart
    spacing = torch.ldexp(torch.ones_like(ratio), (exponent - 4).clamp_min(-9))
    return (ratio / spacing).round() * spacing + 0.0
