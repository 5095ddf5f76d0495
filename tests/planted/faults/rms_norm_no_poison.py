"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "It turns off the filling of fresh memory that would show that its last row is never written."
)
CAUGHT_BY = "forward"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = False
    right, kept, rstd = torch_path.forward(x, weight, residual, eps)
    y = torch.empty_like(right)
    y[:-1] = right[:-1]
    return y, kept, rstd
