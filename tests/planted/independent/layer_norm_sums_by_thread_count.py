"""layer_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Grad_weight and grad_bias are summed in as many parts as torch has threads. Exact "
    "enough, but equal inputs give other bits under another number of threads."
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


def _by_threads(rows: Tensor) -> Tensor:
    """The sum of rows [M, N] float32: one part a thread, then the parts in order."""
    parts = [part.sum(0) for part in rows.tensor_split(max(torch.get_num_threads(), 1))]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


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
    grad_weight = _by_threads((grad * normal).reshape(shape)).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = _by_threads(grad.float().reshape(shape)).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
