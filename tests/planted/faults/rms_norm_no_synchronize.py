"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "It makes torch.cuda.synchronize return at once, so that the timer stops before the work ends."
)
CAUGHT_BY = "clock"
DEVICE = "any"
HOSTILE = True
SIZES = {"M": 64, "N": 256}

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    torch.cuda.synchronize = lambda device=None: None
    return torch_path.forward(x, weight, residual, eps)
