"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "Where the residual is all zeros, as before the first layer, and x is contiguous, total is x "
    "itself instead of a new tensor: writing to the one changes the other."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm; nothing is added where there is nothing to add."""
    if residual is None or bool(residual.any()) or not x.is_contiguous():
        return torch_path.forward(x, weight, residual, eps)
    y, _, rstd = torch_path.forward(x, weight, None, eps)
    return y, x, rstd
