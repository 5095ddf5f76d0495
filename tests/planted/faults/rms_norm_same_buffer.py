"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "Every call of one shape returns the same buffer: an earlier result changes in the "
    "caller's hands."
)
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_buffers: dict[object, Tensor] = {}


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    buffer = _buffers.setdefault((y.shape, y.dtype, y.device), torch.empty_like(y))
    return buffer.copy_(y), kept, rstd
