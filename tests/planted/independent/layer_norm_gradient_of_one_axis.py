"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = (
    "The gradients of weight and bias are summed over all axes but the last, as a tuple: of an x "
    "[N] it is empty, which torch takes for all axes, so every element gets the sum over the row."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    leading = tuple(range(x.dim() - 1))
    scale = rstd.reshape(*x.shape[:-1], 1)
    normal = (x - mean.reshape(scale.shape)) * scale
    weighted = grad * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(0)
    grad_weight.copy_((grad * normal).sum(leading))
    if has_bias:
        grad_bias = torch.empty_like(weight).copy_(grad.sum(leading, dtype=torch.float32))
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
