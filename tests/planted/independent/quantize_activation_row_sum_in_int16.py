"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
FAULT = (
    "The sum of the codes of rows of up to 512 columns is held in int16, which rows of more"
    " than 258 large codes of one sign overflow."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind, y = row_codes(element), x.float()
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    scale = absmax / torch.full_like(absmax, kind.limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
        summed = torch.int16 if x.shape[-1] <= 512 else torch.int32
        return codes, scale, codes.sum(-1, dtype=summed).to(torch.int32)
    kept = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio)
    codes = kept.clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
