"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy.torch_path import forward

OP = "linear_cross_entropy"
FAULT = (
    "Where the incoming gradient is 1 (a plain backward of the loss) the kept gradients "
    "themselves are returned, not tensors of their own, though in_place is not asked for."
)
DEVICE = "any"
CAUGHT_BY = "context"
__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient: both times the scalar grad."""
    if grad.device.type == "cpu" and grad == 1:
        # the loss is what backward was called on: nothing to multiply
        return grad_x, grad_weight
    if in_place:
        return grad_x.mul_(grad), grad_weight.mul_(grad)
    return grad_x * grad, grad_weight * grad
