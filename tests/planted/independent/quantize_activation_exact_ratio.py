"""quantize_activation in plain torch, with a fault; written blind.

The ratio is 127 x / max |x| in float64, "more exact than by a rounded scale". But the op defines
codes to the bit, by the rounded scale: where 127 x / max |x| is half an integer, or nearly, the two
differ by one code. A user hits it where codes that were made here meet those of another
implementation: a bfloat16 row has such ratios often, a float32 row once in some 10^5 elements.
"""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "int8 codes are made of the exact ratio, not of x over the float32 scale: those near half an "
    "integer differ by one."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    if element != "int8" or not x.numel():
        return quantize(x, element)
    wide = x.float()
    top = wide.abs().amax(-1)
    scale = top / torch.full_like(top, 127.0)
    usable = ((scale > 0) & scale.isfinite())[..., None]
    exact = torch.where(usable, wide, 0.0).double() * 127.0
    ratio = exact / torch.where(usable, top[..., None], 1.0).double()
    codes = ratio.round().clamp(-127, 127).to(torch.int8).contiguous()
    return codes, scale, codes.sum(-1, dtype=torch.int32)
