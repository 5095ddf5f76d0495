"""A right kernel; UNUSUAL says how it is unusual."""

import numpy as np
import torch
from torch import Tensor

OP = "softmax"
UNUSUAL = "Numpy in float64, a few rows at a time, sums from the last column to the first."
DEVICE = "any"
__all__ = ["forward", "gradient"]

_ROWS = 37


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    y = torch.empty(x.shape, dtype=x.dtype)
    if not x.numel():
        return y
    rows, out = x.detach().reshape(-1, x.shape[-1]), y.view(-1, x.shape[-1])
    for first in range(0, len(rows), _ROWS):
        wide = rows[first : first + _ROWS].double().numpy()
        with np.errstate(all="ignore"):
            parts = np.exp((wide - wide.max(-1, keepdims=True)) * scale)
            result = parts / np.add.reduce(parts[:, ::-1], -1, keepdims=True)
        out[first : first + _ROWS] = torch.from_numpy(result)
    return y


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p, d = y.detach().double().numpy(), grad.detach().double().numpy()
    with np.errstate(all="ignore"):
        along = (d * p).sum(-1, keepdims=True)
        result = scale * (p * d - p * along)
    return torch.from_numpy(np.ascontiguousarray(result)).to(y.dtype)
