"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "The weight's gradient is summed over rows in the dtype of x: in bfloat16 it drifts "
    "when M is large."
)
CAUGHT_BY = "scale"
DEVICE = "any"
SIZES = {"M": 16384, "N": 64}

__all__ = ["forward", "gradient"]


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
    parts = (g * normal).reshape(rows, weight.numel()).to(total.dtype)
    grad_weight = torch.zeros_like(parts[:1]).sum(0)
    for part in parts:
        grad_weight = grad_weight + part
    return grad_x.to(total.dtype), grad_weight.to(weight.dtype)
