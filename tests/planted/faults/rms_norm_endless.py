"""A planted fault; FAULT says which."""

import time

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It spins on a flag that nothing sets."
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

_ready: list[bool] = []


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    while not _ready:
        time.sleep(0.01)
    return torch_path.forward(x, weight, residual, eps)
