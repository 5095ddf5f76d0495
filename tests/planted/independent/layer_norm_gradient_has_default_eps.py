"""A planted fault; FAULT says which."""

import torch

from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = (
    "The gradient computes rstd again, with the default eps of 1e-5: wrong for another eps "
    "where the variance is small."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]


_EPS = 1e-5


def gradient(grad, x, weight, mean, rstd, has_bias):
    wide = x.float()
    centered = wide - mean.reshape(*x.shape[:-1], 1)
    scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + _EPS)
    normal = centered * scale
    weighted = grad.float() * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (grad * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = grad.reshape(shape).sum(0, dtype=torch.float32).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
