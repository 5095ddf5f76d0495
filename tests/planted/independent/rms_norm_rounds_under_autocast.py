"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "Under autocast x is rounded to bfloat16 before it is normalized."
CAUGHT_BY = "context"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    # the op is shut off from autocast's casts, but not from its depth
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    if depth or torch.is_autocast_enabled(x.device.type):
        y = torch_path.forward(x.bfloat16(), weight, residual, eps)[0].to(x.dtype)
    return y, kept, rstd
