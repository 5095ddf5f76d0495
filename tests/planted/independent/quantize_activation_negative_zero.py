"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
FAULT = (
    "Small negative elements get the fp8 code -0 (byte 0x80) in place of +0, against the "
    "contract (a zero is +0, equal to the bit): hashes of cached codes and kernels that test "
    "bytes for zero go wrong."
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
    ratio = ratio.clamp(-kind.limit, kind.limit)
    if element == "int8":
        codes = ratio.round().to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    codes = ratio.to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
