"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rms_norm"
UNUSUAL = "Einsum in double precision, rows summed from the last to the first."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    n, m = x.shape[-1], x.shape[:-1].numel()
    total = x.double().reshape(m, n)
    if residual is not None:
        total = total + residual.double().reshape(m, n)
    mean = torch.einsum("mn,mn->m", total, total) / torch.tensor(n, dtype=torch.float64)
    rstd = 1 / (mean + eps).sqrt()
    y = torch.einsum("mn,m,n->mn", total, rstd, weight.double()).to(x.dtype).reshape(x.shape)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).reshape(x.shape)
    return y.contiguous(), kept.contiguous(), rstd.float()


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    n, m = weight.numel(), rstd.numel()
    scale = rstd.double()[:, None]
    normal = total.double().reshape(m, n) * scale
    way = grad.double().reshape(m, n)
    weighted = way * weight.double()
    along = torch.einsum("mn,mn->m", weighted, normal)[:, None] / max(n, 1)
    grad_x = scale * weighted - scale * normal * along
    if grad_total is not None:
        grad_x = grad_total.double().reshape(m, n) + grad_x
    grad_weight = torch.einsum("mn,mn->n", way.flip(0), normal.flip(0))
    return (
        grad_x.to(total.dtype).reshape(total.shape).contiguous(),
        grad_weight.to(weight.dtype).contiguous(),
    )
