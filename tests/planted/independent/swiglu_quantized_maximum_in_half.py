"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize, row_codes

OP = "swiglu_quantized"
FAULT = (
    "The largest |y| of a row is found on the product as it is rounded to gate's dtype, codes are "
    "made of the float32 product: scales of 16-bit inputs are rounded to 16 bits, and the codes "
    "are off with them."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = wide * torch.sigmoid(wide) * up
    coarse = y.to(gate.dtype).float()
    if gate.dtype == torch.float32 or not y.shape[-1] or not coarse.isfinite().all():
        return quantize(y, element)
    kind = row_codes(element)
    most = coarse.abs().amax(-1)
    scale = most / torch.full_like(most, kind.limit)
    usable = scale > 0
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    ratio = ratio.clamp(-kind.limit, kind.limit)
    if element == "int8":
        codes = ratio.round().to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    codes = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio).to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
