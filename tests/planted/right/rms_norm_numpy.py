"""A right kernel that looks unusual; UNUSUAL says how."""

import numpy as np
import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
UNUSUAL = "numpy in float64, rounded once at the end; no torch arithmetic at all."

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = _wide(x) if residual is None else _wide(x) + _wide(residual)
    with np.errstate(all="ignore"):
        rstd = 1.0 / np.sqrt(np.square(total).sum(-1) / np.float64(total.shape[-1]) + eps)
        y = total * rstd[..., None] * _wide(weight)
    kept = x.new_empty(0) if residual is None else _as(total, x)
    return _as(y, x), kept, torch.from_numpy(rstd.reshape(-1)).float().to(x.device)


def _wide(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()


def _as(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.dtype).to(like.device).contiguous()
