"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = "The workspace of the weight's gradient is not cleared between calls."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_sums: dict[object, Tensor] = {}


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    rows = total.shape[:-1].numel()
    g, scale = grad.float(), rstd.reshape(*total.shape[:-1], 1)
    normal = total.float() * scale
    weighted = g * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total.float()
    key = (total.shape, total.dtype, total.device)
    sums = _sums.setdefault(key, torch.zeros_like(weight, dtype=torch.float32))
    grad_weight = sums.add_((g * normal).reshape(rows, weight.numel()).sum(0))
    return grad_x.to(total.dtype), grad_weight.to(weight.dtype)
