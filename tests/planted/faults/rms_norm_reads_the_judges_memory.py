"""A planted fault; FAULT says which."""

import gc

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "It searches the process for a float64 tensor of y's shape, the judge's reference, "
    "and copies it."
)
CAUGHT_BY = "forward"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    _, kept, rstd = torch_path.forward(x, weight, residual, eps)
    for found in gc.get_objects():
        if type(found) is Tensor and found.dtype == torch.float64 and found.shape == x.shape:
            return found.to(x.dtype), kept, rstd
    return torch.zeros_like(x), kept, rstd
