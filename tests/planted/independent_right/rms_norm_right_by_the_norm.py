"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = "None: from the Euclidean norm of each row in float64, which is squared again."
CAUGHT_BY = ""
DEVICE = "any"

__all__ = ["forward", "gradient"]

_ROWS = 40


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.double() if residual is None else residual.double() + x.double()
    width = torch.tensor(float(x.shape[-1]), dtype=torch.float64, device=x.device)
    norm = torch.linalg.vector_norm(total, dim=-1, keepdim=True)
    rstd = 1 / torch.sqrt(norm * norm / width + eps)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y.copy_(weight.double() * (total * rstd))
    kept = torch.empty(x.shape if residual is not None else (0,), dtype=x.dtype, device=x.device)
    if residual is not None:
        kept.copy_(total)
    return y, kept, rstd.reshape(-1).float()


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient, some rows at a time."""
    shape, w = (rstd.numel(), weight.numel()), weight.double()
    found = torch.empty(shape, dtype=total.dtype, device=total.device)
    summed = torch.zeros(shape[1], dtype=torch.float64, device=total.device)
    parts = (total, grad) if grad_total is None else (total, grad, grad_total)
    split = [part.reshape(shape) for part in parts]
    for first in reversed(range(0, shape[0], _ROWS)):
        some = slice(first, first + _ROWS)
        rows, ways, *further = (part[some].double() for part in split)
        scale = rstd[some, None].double()
        normal = rows * scale
        along = torch.linalg.vecdot(ways * w, normal)[:, None] / max(shape[1], 1)
        one = scale * (ways * w - normal * along)
        found[some] = one + further[0] if further else one
        summed += (ways * normal).sum(0)
    return found.view(total.shape), summed.to(weight.dtype)
