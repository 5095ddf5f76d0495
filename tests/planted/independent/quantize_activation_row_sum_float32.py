"""quantize_activation in plain torch, on any device."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
FAULT = (
    "Fp8: row_sum is added up in float32, which is not the exact sum rounded once for rows of "
    "a few hundred columns and more."
)
CAUGHT_BY = "forward"
DEVICE = "any"


# half of the smallest e4m3 number: a tie, which goes to zero
_ROUNDS_TO_ZERO = 2.0**-10


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
    kept = torch.where(ratio.abs() <= _ROUNDS_TO_ZERO, 0.0, ratio)
    codes = kept.clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
    return codes, scale, codes.float().sum(-1)
