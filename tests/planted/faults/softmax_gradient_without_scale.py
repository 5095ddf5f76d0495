"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.softmax.torch_path import forward

OP = "softmax"
FAULT = "The gradient lacks the scale."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    g, p = grad.float(), y.float()
    return (scale / scale * p * (g - (g * p).sum(-1, keepdim=True))).to(y.dtype)
