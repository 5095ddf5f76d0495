"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy.torch_path import forward

OP = "linear_cross_entropy"
FAULT = (
    "The gradients are returned as the forward made them: the factor of the incoming one "
    "is missing."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

CHUNK = 256


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient: both times the scalar grad."""
    del grad, in_place
    return grad_x * 1.0, grad_weight * 1.0
