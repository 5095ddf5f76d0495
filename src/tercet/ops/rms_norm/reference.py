"""The meaning of rms_norm, in float64 (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import torch
from torch import Tensor

GRADIENT = 1.6e-5  # what a float32 gradient may be off by, of its magnitude


def reference(
    x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """(y [.., N], total [.., N] or empty, rstd [M]) with total = x + residual."""
    total = x.double() if residual is None else x.double() + residual.double()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    kept = total if residual is not None else total.new_empty(0)
    return total * rstd * weight.double(), kept, rstd.reshape(-1)


def magnitude(
    x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """|x| + |residual| in place of their sum: a float32 sum is off by its parts' rounding."""
    _, total, rstd = reference(x, weight, residual, eps)
    rstd = grown(rstd, eps)
    size = x.double().abs()
    if residual is not None:
        size = size + residual.double().abs()
    scaled = size * rstd.reshape(*x.shape[:-1], 1) * weight.double().abs()
    return scaled, size if residual is not None else total, torch.abs(rstd)


def grown(rstd: Tensor, eps: float) -> Tensor:
    """rstd times (v + |eps|) / (v + eps), v what eps is added to: below 0, it is taken from v."""
    return rstd if eps >= 0 else rstd * (1 - 2 * eps * rstd.square())


def gradient_magnitude(
    directions: list[Tensor],
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Of x: rstd (|g w| + |xhat| mean |g w xhat|) + |grad_total|; at N = 1 they cancel.

    Of weight: the sum of |g xhat| over rows, where two rows may cancel; more where x and residual
    are rounded to fewer bits than weight has, for their sum is kept for the backward as they are.
    """
    total = x.double() if residual is None else x.double() + residual.double()
    rstd = grown((total.square().mean(-1, keepdim=True) + eps).rsqrt(), eps)
    normal, weighted = (total * rstd).abs(), (directions[0].double() * weight.double()).abs()
    size = rstd * (weighted + normal * (weighted * normal).mean(-1, keepdim=True))
    if residual is not None:
        size = size + directions[1].double().abs()
    rows = (x.shape[:-1].numel(), x.shape[-1])
    summed = (directions[0].double().abs() * normal).reshape(rows).sum(0)
    if residual is not None and x.dtype != weight.dtype:
        summed = summed * (1 + torch.finfo(x.dtype).eps / 2 / GRADIENT)
    return {"x": size, "residual": size, "weight": summed}
