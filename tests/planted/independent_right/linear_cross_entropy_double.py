"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "linear_cross_entropy"
UNUSUAL = (
    "Chunks of 100 tokens from the last to the first, all in double precision, the one-hot as "
    "a comparison."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_CHUNK = 100


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    del accumulate_float32, in_place
    m, classes = len(x), len(weight)
    kept = target != ignore_index
    count = int(kept.sum())
    unit = 1 / max(count, 1) if reduction == "mean" and not divide_late else 1.0
    wide, column = weight.double(), torch.arange(classes, device=x.device)
    losses, lse = (torch.empty(m, dtype=torch.float64, device=x.device) for _ in range(2))
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total = torch.zeros(
        weight.shape if weight_gradient else (0,), dtype=torch.float64, device=x.device
    )
    for first in reversed(range(0, m, _CHUNK)):
        part = slice(first, first + _CHUNK)
        tokens, wanted, here = x[part].double(), target[part], kept[part]
        logits = tokens @ wide.mT
        lse[part] = logits.logsumexp(-1)
        inside = (wanted >= 0) & (wanted < classes) & ~logits.amax(-1).isinf()
        picked = logits.gather(1, wanted.clamp(0, classes - 1)[:, None])[:, 0]
        loss = torch.where(inside, lse[part] - picked, torch.nan)
        losses[part] = torch.where(here, loss, 0.0)
        if not (x_gradient or weight_gradient):
            continue
        slope = logits.softmax(-1) - (column == wanted[:, None]).double()
        slope = torch.where(inside[:, None], slope, torch.nan)
        slope = torch.where(here[:, None], slope * unit, 0.0)
        if x_gradient:
            grad_x[part] = (slope @ wide).to(x.dtype)
        if weight_gradient:
            total += slope.mT @ tokens
    loss = losses.sum()
    if reduction == "mean":
        loss = loss / torch.tensor(count, dtype=torch.float64, device=x.device)
    return loss.float(), lse.float(), grad_x, total.to(weight.dtype)


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient."""
    made = [(kept.double() * grad.double()).to(kept.dtype) for kept in (grad_x, grad_weight)]
    if in_place:
        return grad_x.copy_(made[0]), grad_weight.copy_(made[1])
    return made[0], made[1]
