"""A right but unusual kernel; UNUSUAL says how."""

import numpy as np
import torch
from torch import Tensor

from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
UNUSUAL = (
    "Right, but unusual: numpy, in float64; a row is sorted before its mean and its squares are "
    "added, so that sums do not depend on the order of columns."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    shape, count = x.shape, x.shape[:-1].numel()
    rows = x.detach().reshape(count, shape[-1]).double().cpu().numpy()
    with np.errstate(all="ignore"):
        size = np.float64(shape[-1])
        mean = np.sort(rows, axis=1).sum(axis=1, keepdims=True) / size
        away = rows - mean
        rstd = 1 / np.sqrt(np.sort(away * away, axis=1).sum(axis=1, keepdims=True) / size + eps)
        y = away * rstd * weight.detach().double().cpu().numpy()
        if bias is not None:
            y = y + bias.detach().double().cpu().numpy()
    return (
        torch.from_numpy(y).to(x.dtype).reshape(shape).to(x.device),
        torch.from_numpy(mean[:, 0]).float().to(x.device),
        torch.from_numpy(rstd[:, 0]).float().to(x.device),
    )
