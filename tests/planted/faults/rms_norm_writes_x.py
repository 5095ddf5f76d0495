"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "x is normalized in place to save memory: the caller's tensor changes."
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    x.copy_(y)
    return y, kept, rstd
