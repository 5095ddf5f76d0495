"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "The sum runs over axis 1 and not over the last one, which is the same for a matrix only."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    total = parts.sum(min(1, x.dim() - 1), keepdim=True, dtype=torch.float64).float()
    return (parts / total).to(x.dtype).contiguous()
