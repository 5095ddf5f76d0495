"""A planted fault; FAULT says which."""

import threading
import time

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "y is filled by a thread that goes on after the call has returned."
CAUGHT_BY = "poison"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    right, kept, rstd = torch_path.forward(x, weight, residual, eps)
    y = torch.empty_like(right)

    def fill() -> None:
        time.sleep(0.02)
        y.copy_(right)

    threading.Thread(target=fill, daemon=True).start()
    return y, kept, rstd
