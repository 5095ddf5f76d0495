"""A right kernel; UNUSUAL says how it is unusual."""

import numpy as np
import torch
from torch import Tensor

OP = "softmax"
UNUSUAL = (
    "Numpy in float64 on sorted values: sums from the smallest up, undone by the inverse "
    "permutation."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _back(values: np.ndarray, like: Tensor) -> Tensor:
    y = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return y.copy_(torch.from_numpy(values).reshape(like.shape))


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    wide = x.detach().double().cpu().numpy()
    if not wide.size:
        return _back(wide, x)
    with np.errstate(all="ignore"):
        order = np.argsort(wide, -1)
        up = np.take_along_axis(wide, order, -1)
        # NaN sorts last, so it is the last that everything is relative to
        parts = np.exp((up - up[..., -1:]) * scale)
        parts = parts / np.cumsum(parts, -1)[..., -1:]
    y = np.empty_like(parts)
    np.put_along_axis(y, order, parts, -1)
    return _back(y, x)


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p, g = (part.detach().double().cpu().numpy() for part in (y, grad))
    with np.errstate(all="ignore"):
        return _back(scale * p * (g - np.einsum("...n,...n->...", g, p)[..., None]), y)
