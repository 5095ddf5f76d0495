"""rms_norm in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "rms_norm"
UNUSUAL = (
    "Rows with very large elements are divided by their largest before they are squared; sums "
    "over rows of the gradient are a tree of halves."
)

_LARGE = 1e15


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kept = x.new_empty(0)
    if residual is not None:
        kept = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(total)
    if not x.numel():
        rows = x.shape[:-1].numel()
        return y, kept, torch.full((rows,), torch.nan, dtype=torch.float32, device=x.device)
    most = total.abs().amax(-1, keepdim=True)
    size = torch.where((most > _LARGE) & most.isfinite(), most, torch.ones_like(most))
    small = total / size
    mean = small.square().mean(-1, keepdim=True)
    root = (mean + torch.full_like(size, eps) / size / size).rsqrt()
    y.copy_(small * root * weight.float())
    return y, kept, (root / size).reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    m, n = rstd.numel(), weight.numel()
    scale = rstd.reshape(m, 1)
    d = grad.reshape(m, n).float()
    normal = total.reshape(m, n).float() * scale
    weighted = d * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total.reshape(m, n).float()
    out = torch.empty(total.shape, dtype=total.dtype, device=total.device)
    out.copy_(grad_x.reshape(total.shape))
    return out, _halved(d * normal).to(weight.dtype)


def _halved(rows: Tensor) -> Tensor:
    """The sum over rows [M, N]: the lower half onto the upper, until one is left."""
    if not len(rows):
        return rows.new_zeros(rows.shape[1])
    while len(rows) > 1:
        half = len(rows) // 2
        joined = rows[:half] + rows[half : 2 * half]
        rows = torch.cat((joined, rows[2 * half :])) if len(rows) % 2 else joined
    return rows[0]
