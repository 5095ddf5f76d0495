"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Mean and variance come from one pass over x less the row's first element: that cancels "
    "where the first channel is an outlier (as massive activations are) of a wide row, in "
    "float32."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    wide = x.float()
    # a number near the mean, so that the difference of the moments does not cancel
    near = wide[..., :1] if x.shape[-1] else wide.new_zeros((*x.shape[:-1], 1))
    apart = wide - near
    off = apart.mean(-1, keepdim=True)
    off = off + (apart - off).mean(-1, keepdim=True)
    variance = apart.square().mean(-1, keepdim=True) - off.square()
    # a maximum that keeps NaN
    rstd = (variance.clamp_min(0.0) + eps).rsqrt()
    mean = near + off
    y = (apart - off) * rstd * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype).contiguous(), mean.reshape(-1), rstd.reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    scale = rstd.reshape(*x.shape[:-1], 1)
    normal = (x - mean.reshape(scale.shape)) * scale
    weighted = grad * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (grad * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = grad.reshape(shape).sum(0, dtype=torch.float32).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
