"""layer_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Moments are taken of x - x[0], as a variance by difference of two means. The shift saves "
    "rows that lie far from 0 as a whole; it makes things worse where the first element is "
    "the outlier: shows where |x[0] - mean| is tens of times the spread of the others or "
    "more, in rows of a thousand elements and more (in short rows the outlier is itself most "
    "of the variance)."
)
CAUGHT_BY = "forward"


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm, in one pass."""
    if not x.numel():
        rows = x.shape[:-1].numel()
        none = torch.full((rows,), torch.nan, dtype=torch.float32, device=x.device)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device), none, none.clone()
    shift = x[..., :1].float()
    apart = x - shift
    off = apart.mean(-1, keepdim=True)
    variance = (apart.square().mean(-1, keepdim=True) - off.square()).clamp_min(0.0)
    rstd = (variance + eps).rsqrt()
    y = (apart - off) * rstd * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype).contiguous(), (shift + off).reshape(-1), rstd.reshape(-1)


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
