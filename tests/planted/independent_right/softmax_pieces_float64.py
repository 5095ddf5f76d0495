"""softmax in plain torch: pieces of columns from the last to the first, in float64."""

import torch
from torch import Tensor

OP = "softmax"
UNUSUAL = (
    "A running maximum and sum over pieces of 257 columns, last piece first, all in float64, "
    "guarded for pieces of -inf; the gradient's dot product is an einsum in float64."
)
DEVICE = "any"


_PIECE = 257


def forward(x: Tensor, scale: float) -> Tensor:
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = x.double()
    top = torch.full((*x.shape[:-1], 1), -torch.inf, dtype=torch.float64, device=x.device)
    total = torch.zeros_like(top)
    for piece in reversed(wide.split(_PIECE, -1)):
        above = torch.maximum(top, piece.amax(-1, keepdim=True))
        # a row of -inf so far has no share at all yet
        base = torch.where(above == -torch.inf, 0.0, above)
        total = total * ((top - base) * scale).exp()
        total = total + ((piece - base) * scale).exp().sum(-1, keepdim=True)
        top = above
    # of -inf alone: 0 / 0; of an infinite maximum: inf - inf
    y = ((wide - torch.where(top == -torch.inf, 0.0, top)) * scale).exp() / total
    return y.to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    p, g = y.double(), grad.double()
    along = torch.einsum("...n,...n->...", g, p)[..., None]
    return (scale * p * (g - along)).to(y.dtype).contiguous()
