"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Gradient of weight: chunks of 64 rows are added up in weight's dtype, which in bfloat16 "
    "or float16 stalls for very many rows."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


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
    """As op's rms_norm_gradient."""
    scale = rstd.reshape(*total.shape[:-1], 1)
    normal = total * scale
    weighted = grad * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total
    products = (grad * normal).reshape(rstd.numel(), weight.numel())
    grad_weight = torch.zeros_like(weight)
    for piece in products.split(64):
        grad_weight += piece.sum(0)
    return grad_x.to(total.dtype).contiguous(), grad_weight
