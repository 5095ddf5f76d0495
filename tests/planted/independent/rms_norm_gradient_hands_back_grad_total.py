"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "Where only total is used further on, so that y's gradient is all zeros, the gradient of x is "
    "the incoming gradient of total itself: two gradients then share one memory."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient; a y that nobody read costs nothing."""
    if grad_total is not None and grad_total.is_contiguous() and not grad.any():
        return grad_total, weight.new_zeros(weight.shape)
    return torch_path.gradient(grad, grad_total, total, weight, rstd)
