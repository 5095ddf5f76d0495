"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path

OP = "rms_norm"
UNUSUAL = "Rows are taken last first, and the weight's gradient is summed by pairs, as a tree."


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    flipped = None if residual is None else residual.flip(0)
    y, kept, rstd = torch_path.forward(x.flip(0), weight, flipped, eps)
    return y.flip(0), kept.flip(0), rstd.reshape(x.shape[:-1]).flip(0).reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    grad_x, _ = torch_path.gradient(grad, grad_total, total, weight, rstd)
    parts = grad.float() * total.float() * rstd.reshape(*total.shape[:-1], 1)
    parts = parts.reshape(total.shape[:-1].numel(), weight.numel())
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        pairs = len(parts) - half
        parts = torch.cat((parts[:pairs] + parts[half:], parts[pairs:half]))
    return grad_x, parts.sum(0).to(weight.dtype)
