"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "The sum is written into the caller's residual."
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    if residual is not None:
        residual.copy_(kept)
    return y, kept, rstd
