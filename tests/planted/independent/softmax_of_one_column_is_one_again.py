"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "A last axis of size 1 is answered with ones without a look at x: such a row that is NaN or "
    "infinite must become NaN."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax; one share of one is all of it."""
    if x.shape[-1] == 1:
        return x.new_ones(x.shape)
    return torch_path.forward(x, scale)
