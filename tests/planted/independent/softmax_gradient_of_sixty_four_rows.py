"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax.torch_path import forward

OP = "softmax"
FAULT = "The gradient keeps 64 rows' sums: from the 65th row on it takes another row's."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_KEPT = 64


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    g, p = grad.float(), y.float()
    sums = (g * p).sum(-1).flatten()
    at = torch.arange(sums.numel(), device=sums.device) % _KEPT
    sums = sums[at].reshape(*y.shape[:-1], 1)
    return (scale * p * (g - sums)).to(y.dtype).contiguous()
