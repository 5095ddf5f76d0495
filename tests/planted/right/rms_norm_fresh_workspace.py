"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
UNUSUAL = "It keeps a workspace between calls, and clears it before each."

__all__ = ["forward", "gradient"]


_space: dict[object, Tensor] = {}


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    grad_x, _ = torch_path.gradient(grad, grad_total, total, weight, rstd)
    normal = total.float() * rstd.reshape(*total.shape[:-1], 1)
    parts = (grad.float() * normal).reshape(total.shape[:-1].numel(), weight.numel())
    space = _space.setdefault(
        (weight.shape, weight.device), torch.empty(weight.shape, device=weight.device)
    )
    space.zero_()
    for part in parts.split(8):
        space += part.sum(0)
    return grad_x, space.to(weight.dtype, copy=True)
