"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "rms_norm"
UNUSUAL = "Squares are summed by einsum in float64; grad_weight is a product with a row of ones."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(x, weight, residual, eps):
    total = x.double() if residual is None else x.double() + residual.double()
    n = max(x.shape[-1], 1)
    mean = torch.einsum("...n,...n->...", total, total) / n
    if not x.shape[-1]:
        mean = mean * torch.nan
    rstd = 1 / (mean + eps).sqrt()
    y = (total * rstd[..., None] * weight.double()).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.float().reshape(-1)


def gradient(grad, grad_total, total, weight, rstd):
    m, n = rstd.numel(), weight.numel()
    g, r = grad.double().reshape(m, n), rstd.double().reshape(m, 1)
    normal = total.double().reshape(m, n) * r
    weighted = g * weight.double()
    along = torch.einsum("mn,mn->m", weighted, normal)[:, None] / max(n, 1)
    grad_x = (r * (weighted - normal * along)).reshape(total.shape)
    if grad_total is not None:
        grad_x = grad_x + grad_total.double()
    ones = torch.ones(1, m, dtype=torch.float64, device=total.device)
    grad_weight = (ones @ (g * normal)).reshape(n)
    return grad_x.to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
