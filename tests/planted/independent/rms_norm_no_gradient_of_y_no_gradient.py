"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = "Where only total has an incoming gradient, that of y being zeros, x gets none."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    if not grad.any():
        # nothing flows back
        return torch.zeros_like(total, memory_format=torch.contiguous_format), weight * 0
    return torch_path.gradient(grad, grad_total, total, weight, rstd)
