"""quantize_activation in plain torch, on any device."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "Row_sum of fp8_e4m3 is added up in float32, which rounds on the way once a partial sum "
    "exceeds 32768: off by a few units in the last place in rows of some hundred columns and "
    "more whose elements mostly have one sign; int8, short rows and rows around zero are "
    "right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> Quantized:
    if element == "int8":
        return quantize(x, element)
    wide = x.float()
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = absmax / torch.full_like(absmax, 448.0)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], wide, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    # half of the smallest number goes to zero, a zero is never -0
    ratio = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio).clamp(-448.0, 448.0)
    codes = ratio.to(torch.float8_e4m3fn).contiguous()
    return codes, scale, codes.float().sum(-1)
