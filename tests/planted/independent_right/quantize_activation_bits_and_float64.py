"""quantize_activation in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized

OP = "quantize_activation"
UNUSUAL = (
    "The largest element is found among the bits as integers; quotients are taken in float64 "
    "and rounded to float32, which is the IEEE float32 quotient; sums in float64 are exact."
)


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    limit = 127.0 if element == "int8" else 448.0
    wide = x.float()
    bits = wide.view(torch.int32) & 0x7FFFFFFF
    # inf lies above all numbers, and NaN above inf
    most = bits.new_zeros(x.shape[:-1]) if not x.shape[-1] else bits.amax(-1)
    scale = (most.view(torch.float32).double() / limit).float()
    usable = ((scale > 0) & scale.isfinite())[..., None]
    divisor = torch.where(usable, scale[..., None], torch.ones_like(scale[..., None]))
    ratio = (wide.double() / divisor.double()).float()
    ratio = torch.where(usable, ratio, torch.zeros_like(ratio)).clamp(-limit, limit)
    if element == "int8":
        codes = ratio.round().to(torch.int8).contiguous()
        return codes, scale, codes.double().sum(-1).to(torch.int32)
    rounded = ratio.to(torch.float8_e4m3fn).float() + 0.0
    codes = rounded.to(torch.float8_e4m3fn).contiguous()
    return codes, scale, rounded.double().sum(-1).float()
