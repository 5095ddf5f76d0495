"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "Online softmax over blocks of 2048 columns whose running maximum may still be -inf: a longer "
    "row whose first 2048 columns are all -inf (a mask from the left) becomes NaN as a whole."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_BLOCK = 2048


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax, one block of columns after the other."""
    wide = x.float()
    top = wide.new_full((*x.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    for first in range(0, x.shape[-1], _BLOCK):
        part = wide[..., first : first + _BLOCK]
        higher = torch.maximum(top, part.amax(-1, keepdim=True))
        grown = ((part - higher) * scale).exp().sum(-1, keepdim=True)
        if first:
            grown = grown + total * ((top - higher) * scale).exp()
        top, total = higher, grown
    return (((wide - top) * scale).exp() / total).to(x.dtype).contiguous()
