"""softmax in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "Turns on flushing of subnormal numbers for speed, and never turns it off again. Shows "
    "after the first call, in whatever the caller computes next on this thread with subnormal "
    "numbers, and in results of this kernel that are subnormal."
)
CAUGHT_BY = "forward"


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    # tails of exp are subnormal, which some CPUs take a hundred times as long for
    torch.set_flush_denormal(True)
    values = x.float()
    if x.numel():
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
