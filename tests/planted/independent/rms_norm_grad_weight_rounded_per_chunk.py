"""rms_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Grad_weight is summed over chunks of 128 rows in weight's dtype. Shows with a float16 or "
    "bfloat16 weight and many rows (some thousands) whose terms add up rather than cancel: "
    "partial sums are rounded once a chunk, and from 256 chunks on a chunk may vanish in "
    "them."
)
CAUGHT_BY = "forward"

_ROWS = 128


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient, in chunks of rows, so that float32 copies stay in the cache."""
    m, n = rstd.numel(), weight.numel()
    rows, grads = total.reshape(m, n), grad.reshape(m, n)
    through = None if grad_total is None else grad_total.reshape(m, n)
    grad_x = torch.empty((m, n), dtype=total.dtype, device=total.device)
    grad_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    for first in range(0, m, _ROWS):
        part = slice(first, first + _ROWS)
        scale = rstd[part, None]
        normal = rows[part] * scale
        weighted = grads[part] * weight.float()
        piece = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
        if through is not None:
            piece = piece + through[part]
        grad_x[part] = piece.to(total.dtype)
        grad_weight += (grads[part] * normal).sum(0).to(weight.dtype)
    return grad_x.reshape(total.shape), grad_weight
