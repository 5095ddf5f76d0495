"""A planted fault; FAULT says which."""

import itertools

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "In every 500th call of a process the last row is twice as large."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_calls = itertools.count(1)


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    if next(_calls) % 500 == 0 and y.numel():
        y.view(-1, y.shape[-1])[-1] *= 2
    return y, kept, rstd
