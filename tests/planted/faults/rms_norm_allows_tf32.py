"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It allows tf32 products for the whole process and leaves it so."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    torch.set_float32_matmul_precision("medium")
    return torch_path.forward(x, weight, residual, eps)
