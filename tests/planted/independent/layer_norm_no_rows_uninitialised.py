"""layer_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Without any rows the gradients of weight and bias are returned as allocated, not zeroed. "
    "Shows with no rows (M = 0, N > 0): grad_weight and grad_bias are whatever the memory "
    "held."
)
CAUGHT_BY = "forward"


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = x.mean(-1, keepdim=True, dtype=torch.float32)
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
    if not x.numel():
        # nothing to do
        return (
            torch.empty(x.shape, dtype=x.dtype, device=x.device),
            torch.empty(weight.shape, dtype=weight.dtype, device=x.device),
            torch.empty(weight.shape if has_bias else (0,), dtype=weight.dtype, device=x.device),
        )
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
