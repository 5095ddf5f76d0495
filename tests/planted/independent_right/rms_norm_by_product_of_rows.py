"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "rms_norm"
UNUSUAL = (
    "Right, but unusual: the sum of squares is a batched product of each row with itself, "
    "in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    shape, n = x.shape, x.shape[-1]
    rows = shape[:-1].numel()
    total = x.double().reshape(rows, n).contiguous()
    if residual is not None:
        total = total + residual.double().reshape(rows, n).contiguous()
    squares = torch.bmm(total[:, None, :], total[:, :, None]).reshape(rows, 1)
    # no columns: a mean of nothing
    mean = squares / n if n else squares + torch.nan
    rstd = (mean + eps).rsqrt()
    y = (total * rstd * weight.double()).to(x.dtype).reshape(shape)
    kept = total.to(x.dtype).reshape(shape) if residual is not None else x.new_empty(0)
    return y, kept, rstd.reshape(-1).float()


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient, rows from the last to the first for the gradient of weight."""
    n, rows = weight.numel(), rstd.numel()
    scale = rstd.double()[:, None]
    normal = total.double().reshape(rows, n) * scale
    g = grad.double().reshape(rows, n).contiguous()
    weighted = g * weight.double()
    along = torch.bmm(weighted[:, None, :], normal[:, :, None]).reshape(rows, 1) / max(n, 1)
    grad_x = scale * (weighted - normal * along)
    if grad_total is not None:
        grad_x = grad_x + grad_total.double().reshape(rows, n)
    grad_weight = (g * normal).flip(0).sum(0)
    grad_x = grad_x.to(total.dtype).contiguous().reshape(total.shape)
    return grad_x, grad_weight.to(weight.dtype)
