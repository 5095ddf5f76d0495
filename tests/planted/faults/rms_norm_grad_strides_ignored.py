"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "The incoming gradient is taken to be contiguous: one that is part of a wider tensor "
    "is read wrongly."
)
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    rows = total.shape[:-1].numel()
    if not grad.is_contiguous():
        grad = grad.as_strided(grad.shape, torch.empty(grad.shape).stride())
    g, scale = grad.float(), rstd.reshape(*total.shape[:-1], 1)
    normal = total.float() * scale
    weighted = g * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total.float()
    grad_weight = (g * normal).reshape(rows, weight.numel()).sum(0)
    return grad_x.to(total.dtype), grad_weight.to(weight.dtype)
