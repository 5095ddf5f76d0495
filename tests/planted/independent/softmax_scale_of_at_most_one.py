"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "A scale above 1, a temperature below 1, is taken for 1."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    return torch_path.forward(x, min(scale, 1.0))
