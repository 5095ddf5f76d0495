"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It halves what CUDA events measure."
CAUGHT_BY = "clock"
DEVICE = "any"
HOSTILE = True
SIZES = {"M": 64, "N": 256}

__all__ = ["forward", "gradient"]

_patched: list[bool] = []


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    if not _patched:
        _patched.append(True)
        measured = torch.cuda.Event.elapsed_time
        torch.cuda.Event.elapsed_time = lambda self, end: measured(self, end) / 2
    return torch_path.forward(x, weight, residual, eps)
