"""A planted fault; FAULT says which."""

from collections import Counter

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "From the third call with a shape on, the result is off by a hundredth."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_calls: Counter[object] = Counter()


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    key = (x.shape, x.dtype, residual is None)
    _calls[key] += 1
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    return y * 1.01 if _calls[key] > 2 else y, kept, rstd
