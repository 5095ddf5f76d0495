"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "Subnormal inputs are flushed to zero before they are scaled into the normal range."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    total = torch.where(total.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, total)
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight.float()).to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype)
    return y, kept, rstd.reshape(-1)
