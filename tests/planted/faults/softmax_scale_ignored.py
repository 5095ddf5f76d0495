"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "The scale is not applied."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * (scale / scale)
    return torch.softmax(values, -1).to(x.dtype)
