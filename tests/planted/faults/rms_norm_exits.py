"""A planted fault; FAULT says which."""

import os

from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It ends the process with exit status 0, as if all had gone well."
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    os._exit(0)
