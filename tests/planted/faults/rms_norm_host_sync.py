"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "It reads a value on the host before it launches: no CUDA graph can hold it."
CAUGHT_BY = "graph"
DEVICE = "cuda"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    if x.numel() and x.reshape(-1)[0].item() == torch.inf:
        return torch_path.forward(x.clone(), weight, residual, eps)
    return torch_path.forward(x, weight, residual, eps)
