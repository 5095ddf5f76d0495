"""quantize_activation in plain torch, on any device."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
FAULT = "Fp8: a negative element that is not 0 but rounds to 0 has the code -0 (0x80)."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind, y = row_codes(element), x.float()
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    # on a GPU torch divides by a number as a product with its reciprocal, which is not exact
    scale = absmax / torch.full_like(absmax, kind.limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    kept = torch.where(ratio == 0, 0.0, ratio)
    codes = kept.clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
