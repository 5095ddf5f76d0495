"""rms_norm in plain torch, with a fault; written blind.

Rows are divided by their largest element first, so that squares do not overflow, and eps by its
square. Of a row whose largest element is below about 1e-22 that square is 0 or subnormal: eps over
it is inf, the root 0, and so is the row, where x / sqrt(eps) is meant. The gradient is 0, too. A
user hits it with float32 or bfloat16 rows of tiny numbers: layers that begin at nearly 0.
"""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "Rows are scaled by their largest element and eps by its square: of rows below about 1e-22 "
    "that overflows, and they become 0."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    top = total.abs().amax(-1, keepdim=True) if total.numel() else total.sum(-1, keepdim=True)
    # a row of zeros, or not finite, is taken as it is
    top = torch.where((top > 0) & top.isfinite(), top, 1.0)
    small = total / top
    inverse = (small.square().mean(-1, keepdim=True) + eps / top.square()).rsqrt()
    y = (small * inverse * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, (inverse / top).reshape(-1)
