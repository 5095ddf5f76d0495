"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "softmax"
UNUSUAL = (
    "Right, but unusual: each row is sorted, its exponentials are added from the smallest on in "
    "float64, and the shares are put back to their places."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if not x.numel():
        return x.new_empty(x.shape)
    values, order = x.double().sort(-1)
    broken = ~(values < torch.inf).all(-1, keepdim=True)
    parts = ((values - values[..., -1:]) * scale).exp()
    shares = parts / parts.cumsum(-1)[..., -1:]
    y = torch.empty(x.shape, dtype=torch.float64, device=x.device).scatter_(-1, order, shares)
    return y.masked_fill(broken, torch.nan).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient, in float64."""
    p = y.double()
    along = torch.einsum("...n,...n->...", grad.double(), p)[..., None]
    return (scale * p * (grad.double() - along)).to(y.dtype).contiguous()
