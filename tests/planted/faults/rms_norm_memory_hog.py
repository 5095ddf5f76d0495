"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It keeps a workspace of 512 MiB for every call and never gives one back."
CAUGHT_BY = "memory"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

_kept: list[Tensor] = []


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    _kept.append(torch.zeros(2**27, dtype=torch.float32, device=x.device).fill_(1.0))
    return torch_path.forward(x, weight, residual, eps)
