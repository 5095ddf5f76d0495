"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "The gradient of the norm is added onto grad_total.float(), which of a float32 total is the "
    "incoming gradient itself: it is changed, and handed out as x's."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    grad_x, grad_weight = torch_path.gradient(grad, None, total, weight, rstd)
    if grad_total is None or total.dtype != torch.float32:
        return torch_path.gradient(grad, grad_total, total, weight, rstd)
    return grad_total.float().contiguous().add_(grad_x), grad_weight
