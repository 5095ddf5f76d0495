"""softmax in plain torch; long rows in pieces, with a running maximum."""

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "A row of more than 4096 whose first 4096 elements are all -inf becomes NaN whatever follows."
)
CAUGHT_BY = "forward"
DEVICE = "any"


_PIECE = 4096


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.shape[-1] > _PIECE:
        top = values.new_full((*x.shape[:-1], 1), -torch.inf)
        total = torch.zeros_like(top)
        for piece in values.split(_PIECE, -1):
            higher = torch.maximum(top, piece.amax(-1, keepdim=True))
            parts = ((piece - higher) * scale).exp()
            total = total * ((top - higher) * scale).exp() + parts.sum(-1, keepdim=True)
            top = higher
        return (((values - top) * scale).exp() / total).to(x.dtype).contiguous()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
