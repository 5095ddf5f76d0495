"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "An axis of one element between the first and the last is dropped from y."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    y, mean, rstd = torch_path.forward(x, weight, bias, eps)
    ones = tuple(axis for axis in range(1, x.dim() - 1) if x.shape[axis] == 1)
    return y.squeeze(ones), mean, rstd
