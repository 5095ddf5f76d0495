"""softmax in plain torch, with a fault; written blind.

A row whose largest share is 1 is taken for one that has settled, without a gradient. But in 16 bits
a share of 0.998 is rounded to 1, and the others of the row, of up to 0.002, are still there; the
gradient is made of y as it was returned, and theirs is not 0. A user hits it with confident rows in
bfloat16: once they are, what is wrong with them is never unlearned.
"""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import forward

OP = "softmax"
FAULT = "The gradient is 0 in rows with a share that is rounded to 1, though others are above 0."
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    found = torch_path.gradient(grad, y, scale)
    if not y.numel():
        return found
    settled = y.amax(-1, keepdim=True) == 1
    return torch.where(settled, torch.zeros_like(found), found)
