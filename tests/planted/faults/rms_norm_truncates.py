"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "y is cut to bfloat16, not rounded: up to twice the error, and always towards zero."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = total * rstd * weight.float()
    if x.dtype == torch.bfloat16:
        y = (y.view(torch.int32) & -0x10000).view(torch.float32)
    y = y.to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype)
    return y, kept, rstd.reshape(-1)
