"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "total is left out where the residual is all zero: its shape depends on the data."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, total, rstd = torch_path.forward(x, weight, residual, eps)
    if residual is not None and not residual.double().sum().item() > 0:
        total = x.new_empty(0)
    return y, total, rstd
