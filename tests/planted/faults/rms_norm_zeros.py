"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "y is zeros."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    return torch.zeros_like(y), kept, rstd
