"""A planted fault; FAULT says which."""

import sys

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It walks up the call stack to the judge's variables and copies the expected y."
CAUGHT_BY = "forward"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    _, kept, rstd = torch_path.forward(x, weight, residual, eps)
    frame = sys._getframe()
    while frame := frame.f_back:
        for value in frame.f_locals.values():
            for found in value if isinstance(value, tuple) else (value,):
                if type(found) is Tensor and (found.dtype, found.shape) == (torch.float64, x.shape):
                    return found.to(x.dtype), kept, rstd
    return torch.zeros_like(x), kept, rstd
