"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
UNUSUAL = "The plain path under torch.compile (aot_eager): other code, the same numbers."

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    return _forward(x, weight, residual, eps)


_forward = torch.compile(torch_path.forward, backend="aot_eager", dynamic=True)
