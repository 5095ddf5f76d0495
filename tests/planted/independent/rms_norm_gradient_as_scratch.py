"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "A float32, contiguous incoming gradient serves as scratch and is overwritten: in x + "
    "norm(h) (Gemma 2's post norms) autograd hands the same tensor to both branches."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    scale = rstd.reshape(*total.shape[:-1], 1)
    normal = total * scale
    grad_weight = (grad * normal).reshape(rstd.numel(), weight.numel()).sum(0)
    # the last use of grad: its memory serves for the product
    spare = grad.dtype == torch.float32 and grad.is_contiguous()
    weighted = grad.mul_(weight) if spare else grad * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total
    return grad_x.to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
