"""A planted fault; FAULT says which."""

import threading
import time

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "A thread goes on after the call has returned; y is right as soon as anyone looks at it slowly."
)
CAUGHT_BY = "threads"
DEVICE = "any"
SIZES = {"M": 64, "N": 256}

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    right, kept, rstd = torch_path.forward(x, weight, residual, eps)
    y = right.clone()

    def fill() -> None:
        time.sleep(0.05)
        y.copy_(right)

    threading.Thread(target=fill, daemon=True).start()
    return y, kept, rstd
