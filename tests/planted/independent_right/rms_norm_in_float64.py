"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "rms_norm"
UNUSUAL = (
    "Float64 inside; the mean of squares is a product of each row with itself (bmm), the "
    "gradient of weight a product of ones with a matrix."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    n, m = x.shape[-1], x.shape[:-1].numel()
    total = x.double()
    if residual is not None:
        total = torch.add(total, residual.double())
    rows = total.reshape(m, n)
    squares = torch.bmm(rows[:, None], rows[:, :, None]).reshape(m)
    # of no columns the mean is NaN
    mean = squares / n if n else torch.full_like(squares, torch.nan)
    rstd = (mean + eps).rsqrt()
    y = (rows * (rstd[:, None] * weight.double())).reshape(x.shape).to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y.contiguous(), kept, rstd.float()


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    n, m = total.shape[-1], rstd.numel()
    scale = rstd.double()[:, None]
    normal = total.double().reshape(m, n) * scale
    way = grad.double().reshape(m, n)
    weighted = way * weight.double()
    along = (weighted * normal).mean(-1, keepdim=True) if n else scale
    grad_x = torch.addcmul(weighted, normal, along, value=-1.0) * scale
    if grad_total is not None:
        grad_x = grad_x + grad_total.double().reshape(m, n)
    grad_weight = (torch.ones(1, m, dtype=way.dtype, device=way.device) @ (way * normal))[0]
    return grad_x.reshape(total.shape).to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
