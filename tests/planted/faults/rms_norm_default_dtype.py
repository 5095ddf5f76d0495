"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It sets torch's default dtype and leaves it so: the caller's next tensors are float64."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    torch.set_default_dtype(torch.float64)
    return torch_path.forward(x, weight, residual, eps)
