"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.softmax.torch_path import forward

OP = "softmax"
FAULT = "The gradient lacks the sum over the row."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    g, p = grad.float(), y.float()
    return (scale * p * g).to(y.dtype)
