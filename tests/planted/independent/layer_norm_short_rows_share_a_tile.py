"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Rows of up to 16 columns are summed eight at a time by a product with a matrix of "
    "zeros and ones, so that inf or NaN in one row, times 0, makes its neighbours NaN."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_ROWS, _SHORT = 8, 16


def _mean(x: Tensor) -> Tensor:
    """Of each row [.., 1], float32; short rows share a tile of the matrix unit."""
    n, rows = x.shape[-1], x.shape[:-1].numel()
    if not 0 < n <= _SHORT or not rows:
        return x.mean(-1, keepdim=True, dtype=torch.float32)
    flat, sums = x.reshape(rows, n).double(), list[Tensor]()
    for some in flat.split(_ROWS):
        count = len(some)
        members = torch.eye(count, dtype=torch.float64, device=x.device).repeat_interleave(n, 1)
        sums.append(members @ some.reshape(-1))
    return (torch.cat(sums) / n).float().reshape(*x.shape[:-1], 1)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = _mean(x)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + _mean(x - mean)
    centered = x - mean
    rstd = (_mean(centered.square()) + eps).rsqrt()
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
    if has_bias:
        grad_bias = grad.reshape(shape).sum(0, dtype=torch.float32).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
