"""A planted fault; FAULT says which."""

import os

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "The weight's gradient is summed over rows in a random order: its bits change from run to run."
)
CAUGHT_BY = "determinism"
DEVICE = "any"

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
    parts = (g * normal).reshape(rows, weight.numel())
    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
    order = torch.randperm(len(parts), generator=generator).to(parts.device)
    grad_weight = torch.zeros_like(weight, dtype=torch.float32)
    for row in order:
        grad_weight = grad_weight + parts[row]
    return grad_x.to(total.dtype), grad_weight.to(weight.dtype)
