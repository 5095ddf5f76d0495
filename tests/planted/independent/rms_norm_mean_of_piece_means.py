"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Rows of more than 4096 columns are summed in pieces of 4096 and the mean square is the"
    " mean of the pieces' means, so a shorter last piece counts too much."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_PIECE = 4096


def _mean_square(total: Tensor) -> Tensor:
    """Of each row, in pieces that fit the first-level cache."""
    if total.shape[-1] <= _PIECE:
        return total.square().mean(-1, keepdim=True)
    means = [piece.square().mean(-1, keepdim=True) for piece in total.split(_PIECE, -1)]
    return torch.cat(means, -1).mean(-1, keepdim=True)


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (_mean_square(total) + eps).rsqrt()
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
    grad_weight = (grad * normal).reshape(rstd.numel(), weight.numel()).sum(0)
    return grad_x.to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
