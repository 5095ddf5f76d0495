"""swiglu_quantized in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "Fp8 codes of small negative numbers are -0 (0x80), which the contract says are +0. Shows "
    "in the bits of fp8_e4m3 codes only: as numbers they are equal."
)
CAUGHT_BY = "forward"


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = wide * torch.sigmoid(wide) * up
    codes, scale, row_sum = quantize(y, element)
    if element == "int8":
        return codes, scale, row_sum
    usable = ((scale > 0) & scale.isfinite())[..., None]
    ratio = torch.where(usable, y / torch.where(usable, scale[..., None], 1.0), 0.0)
    return ratio.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale, row_sum
