"""layer_norm in plain torch: moments of pieces of columns in float64, merged (Chan et al. 1979)."""

import torch
from torch import Tensor

OP = "layer_norm"
UNUSUAL = (
    "Mean and variance of pieces of 96 columns are merged in float64, and all else is float64 "
    "up to the one rounding: more exact than float32."
)
DEVICE = "any"


_PIECE = 96


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    wide = x.double()
    mean = wide.new_zeros((*x.shape[:-1], 1))
    squares, count = torch.zeros_like(mean), 0
    for piece in wide.split(_PIECE, -1):
        size = piece.shape[-1]
        if not size:
            continue
        own = piece.mean(-1, keepdim=True)
        apart, both = own - mean, count + size
        squares = squares + (piece - own).square().sum(-1, keepdim=True)
        squares = squares + apart.square() * (count * size / both)
        mean, count = mean + apart * (size / both), both
    variance = squares / count if count else torch.full_like(squares, torch.nan)
    mean = mean if count else torch.full_like(mean, torch.nan)
    rstd = (variance + eps).rsqrt()
    y = (wide - mean) * rstd * weight.double()
    if bias is not None:
        y = y + bias.double()
    return y.to(x.dtype).contiguous(), mean.float().reshape(-1), rstd.float().reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    scale = rstd.double().reshape(*x.shape[:-1], 1)
    normal = (x.double() - mean.double().reshape(scale.shape)) * scale
    way = grad.double()
    weighted = way * weight.double()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (way * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = way.reshape(shape).sum(0).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
