"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = (
    "The gradient of the bias is summed with the incoming gradient's dtype as its result: with "
    "float32 weight and bias beside 16-bit x it is rounded to 16 bits on the way to float32."
)
CAUGHT_BY = "gradients"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    grad_x, grad_weight, none = torch_path.gradient(grad, x, weight, mean, rstd, False)
    if not has_bias:
        return grad_x, grad_weight, none
    rows = grad.reshape(x.shape[:-1].numel(), weight.numel())
    return grad_x, grad_weight, rows.sum(0).to(weight.dtype)
