"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
UNUSUAL = "Mean and variance by Welford's update over tiles of 32 columns, merged pairwise."

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    wide, count = x.float(), 0
    mean = wide.new_full((*x.shape[:-1], 1), 0.0 if x.shape[-1] else torch.nan)
    squares = mean.clone()
    for tile in wide.split(32, -1):
        n = tile.shape[-1]
        if not n:
            continue
        own = tile.mean(-1, keepdim=True)
        away = own - mean
        count += n
        squares = squares + (tile - own).square().sum(-1, keepdim=True)
        squares = squares + away.square() * ((count - n) * n / count)
        mean = mean + away * (n / count)
    rstd = (squares / max(count, 1) + eps).rsqrt()
    y = (wide - mean) * rstd * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype).contiguous(), mean.reshape(-1), rstd.reshape(-1)
