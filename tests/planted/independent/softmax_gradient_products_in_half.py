"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import forward

OP = "softmax"
FAULT = (
    "The products of the gradient's sum, grad * y, are formed in y's 16 bits before they are "
    "added in float32: where all of a row's gradients are nearly alike, what is left of their "
    "difference is wrong."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    along = (grad * y).sum(-1, keepdim=True, dtype=torch.float32)
    return (scale * y.float() * (grad - along)).to(y.dtype).contiguous()
