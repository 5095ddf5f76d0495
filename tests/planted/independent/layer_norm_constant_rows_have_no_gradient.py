"""layer_norm in plain torch, with a fault; written blind.

A row of equal elements is padding, it was thought, and its result does not depend on it: its
gradient is set to 0. But a small change of one element changes the result by 1 / sqrt(eps) of it. A
user hits it with embeddings that begin as zeros: they get no gradient, and stay zeros.
"""

import torch
from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = "The gradient of x is 0 in rows whose elements are all equal."
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    grad_x, grad_weight, grad_bias = torch_path.gradient(grad, x, weight, mean, rstd, has_bias)
    if x.numel():
        flat = (x == x[..., :1]).all(-1, keepdim=True)
        grad_x = torch.where(flat, torch.zeros_like(grad_x), grad_x)
    return grad_x, grad_weight, grad_bias
