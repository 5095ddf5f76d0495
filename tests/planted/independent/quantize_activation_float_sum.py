"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
FAULT = (
    "Row_sum of fp8 codes is added up in float32, rounded at every step, not exact and "
    "rounded once: other bits where the sum grows beyond 2^15, as of wide rows of one sign "
    "(after a ReLU or a softmax)."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

_ROUNDS_TO_ZERO = 2.0**-10


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind, y = row_codes(element), x.float()
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    scale = absmax / torch.full_like(absmax, kind.limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    kept = torch.where(ratio.abs() <= _ROUNDS_TO_ZERO, 0.0, ratio)
    codes = kept.clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
    return codes, scale, codes.float().sum(-1)
