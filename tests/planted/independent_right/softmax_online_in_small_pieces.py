"""A right but unusual kernel; UNUSUAL says how."""

import math

import torch
from torch import Tensor

OP = "softmax"
UNUSUAL = (
    "Right, but unusual: an online softmax over pieces of 37 columns, walked from the right"
    " end, in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_PIECE = 37


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[-1]
    top = torch.full((*x.shape[:-1], 1), -math.inf, dtype=torch.float64, device=x.device)
    total = torch.zeros_like(top)
    for last in range(n, 0, -_PIECE):
        piece = x[..., max(last - _PIECE, 0) : last].double()
        higher = torch.maximum(top, piece.amax(-1, keepdim=True))
        # nothing seen yet but -inf: nothing to subtract
        base = torch.where(higher == -math.inf, 0.0, higher)
        old = torch.exp((top - base) * scale)
        total = total * old + torch.exp((piece - base) * scale).sum(-1, keepdim=True)
        top = higher
    return (torch.exp((x.double() - top) * scale) / total).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p, g = y.double(), grad.double()
    return (scale * p * (g - torch.linalg.vecdot(g, p)[..., None])).to(y.dtype).contiguous()
