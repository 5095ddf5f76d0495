"""Kept gradient: of a scalar loss, computed with it; the incoming gradient is only a factor."""

from torch import Tensor


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """Both kept gradients times the scalar `grad`, in plain torch, on any device."""
    # a Python number is multiplied in float32; a scalar tensor would be rounded to their dtype
    factor = grad.item()
    if in_place:
        return grad_x.mul_(factor), grad_weight.mul_(factor)
    return grad_x * factor, grad_weight * factor
