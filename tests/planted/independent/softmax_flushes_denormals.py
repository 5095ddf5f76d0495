"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "Switches the processor to flush subnormal numbers for speed and leaves it so after the "
    "call; subnormal results become 0."
)
DEVICE = "any"
CAUGHT_BY = "state"
__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    # exponentials far below the maximum are subnormal, which is slow
    torch.set_flush_denormal(True)
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
