"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "A row of one column is answered with 1 without reading it, so NaN and infinities "
    "become 1 rather than NaN."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if x.shape[-1] == 1:
        return torch.ones(x.shape, dtype=x.dtype, device=x.device)
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
