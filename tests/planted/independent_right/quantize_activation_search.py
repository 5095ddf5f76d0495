"""quantize_activation in torch: quotients through float64, codes by a search among borders."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized

OP = "quantize_activation"
UNUSUAL = (
    "Quotients of float32 numbers are divided in float64 and rounded to float32, which gives "
    "the bits of one IEEE division; fp8 codes come from a binary search among the borders "
    "between numbers, ties to the even code; sums are those of integers."
)
DEVICE = "any"


def forward(x: Tensor, element: str) -> Quantized:
    limit = 127.0 if element == "int8" else 448.0
    wide = x.float()
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = (absmax.double() / limit).float()
    usable = (scale > 0) & scale.isfinite()
    divisor = torch.where(usable, scale, 1.0).double()[..., None]
    ratio = (torch.where(usable[..., None], wide, 0.0).double() / divisor).float()
    if element == "int8":
        codes = ratio.round().clamp(-limit, limit).to(torch.int8).contiguous()
        return codes, scale, codes.to(torch.int64).sum(-1).to(torch.int32)
    # the numbers that codes 0 .. 126 stand for rise evenly with the code
    numbers = torch.arange(127, dtype=torch.uint8, device=x.device).view(torch.float8_e4m3fn)
    numbers = numbers.float().double()
    borders = (numbers[1:] + numbers[:-1]) / 2
    size = ratio.double().abs().clamp(max=limit).contiguous()
    below = torch.searchsorted(borders, size, right=False)
    above = torch.searchsorted(borders, size, right=True)
    place = torch.where(below % 2 == 0, below, above)
    negative = (ratio < 0) & (place > 0)
    codes = torch.where(negative, place + 128, place).to(torch.uint8).contiguous()
    # every number is a multiple of 2^-9
    units = (numbers * 512).long()[place]
    total = torch.where(negative, -units, units).sum(-1)
    return codes.view(torch.float8_e4m3fn), scale, (total.double() / 512).float()
