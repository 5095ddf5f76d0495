"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "The gradient of bias for a single float32 row is a view of the incoming gradient and "
    "no tensor of its own."
)
DEVICE = "any"
CAUGHT_BY = "inputs"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = x.mean(-1, keepdim=True, dtype=torch.float32)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + (x - mean).mean(-1, keepdim=True)
    centered = x - mean
    rstd = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = centered * rstd * weight
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
    # the number of rows is given: -1 cannot be inferred where N is 0
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (grad * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias and shape[0] == 1 and grad.dtype == weight.dtype:
        # one row: nothing to sum
        grad_bias = grad.reshape(shape[1])
    elif has_bias:
        grad_bias = grad.reshape(shape).sum(0, dtype=torch.float32).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
