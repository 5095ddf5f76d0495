"""A planted fault; FAULT says which."""

from importlib import import_module

from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It returns the op's own reference: nothing of the author's is judged."
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    answer = import_module("tercet.ops.rms_norm.reference").reference
    y, kept, rstd = answer(x, weight, residual, eps)
    return y.to(x.dtype), kept.to(x.dtype), rstd.float()
