"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "The product with the scale is rounded before the maximum is taken off: far from zero it is "
    "coarse."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float() * (scale * 1.4426950408889634)
    if x.numel():
        values = values - values.amax(-1, keepdim=True)
    parts = values.exp2()
    total = parts.sum(-1, keepdim=True, dtype=torch.float64).float()
    return (parts / total).to(x.dtype).contiguous()
