"""A planted fault; FAULT says which."""

import time

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It makes Python's clocks run ten times slower, so that it seems fast."
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
        ns, seconds = time.perf_counter_ns, time.perf_counter
        time.perf_counter_ns = lambda: ns() // 10
        time.perf_counter = lambda: seconds() / 10
    return torch_path.forward(x, weight, residual, eps)
