"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = "The incoming gradient is read as if its rows lay next to each other."
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    n = x.shape[-1]
    if grad.dim() == 2 and grad.stride(1) == 1 and grad.stride(0) > n:
        grad = grad.as_strided(grad.shape, (n, 1))
    return torch_path.gradient(grad, x, weight, mean, rstd, has_bias)
