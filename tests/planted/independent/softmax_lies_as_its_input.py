"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "y has the strides of x: of a transposed x it is not contiguous."
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    return torch.empty_like(x).copy_(torch_path.forward(x, scale))
