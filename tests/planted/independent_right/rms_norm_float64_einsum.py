"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rms_norm"
UNUSUAL = (
    "All of it in float64, sums by einsum over rows of one matrix; the gradient computes its "
    "own projection as a difference of outer products, one row block of 3 at a time."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_BLOCK = 3


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    n, m = x.shape[-1], x.shape[:-1].numel()
    total = x.double().reshape(m, n)
    if residual is not None:
        total = total + residual.double().reshape(m, n)
    if n:
        rstd = 1 / torch.sqrt(torch.einsum("mn,mn->m", total, total) / n + eps)
    else:
        rstd = total.new_full((m,), torch.nan)
    y = torch.einsum("mn,m->mn", total, rstd) * weight.double()
    kept = x.new_empty(0)
    if residual is not None:
        kept = total.to(x.dtype).reshape(x.shape).contiguous()
    return y.to(x.dtype).reshape(x.shape).contiguous(), kept, rstd.float()


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    m, n = rstd.numel(), weight.numel()
    grad_x = torch.empty((m, n), dtype=total.dtype, device=total.device)
    grad_weight = torch.zeros(n, dtype=torch.float64, device=total.device)
    totals, grads = total.reshape(m, n), grad.reshape(m, n)
    through = grad_total.reshape(m, n) if grad_total is not None else None
    for first in range(0, m, _BLOCK):
        some = slice(first, first + _BLOCK)
        root = rstd[some, None].double()
        normal, g = totals[some].double() * root, grads[some].double()
        weighted = g * weight.double()
        along = torch.einsum("mn,mn->m", weighted, normal)[:, None] / max(n, 1)
        part = root * weighted - root * normal * along
        if through is not None:
            part = part + through[some].double()
        grad_x[some] = part.to(total.dtype)
        grad_weight += torch.einsum("mn,mn->n", g, normal)
    return grad_x.reshape(total.shape), grad_weight.to(weight.dtype)
