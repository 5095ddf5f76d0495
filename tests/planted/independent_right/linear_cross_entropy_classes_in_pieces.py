"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "linear_cross_entropy"
UNUSUAL = (
    "Right, but unusual: whole tokens, classes in pieces of 50, the lse first and the "
    "logits a second time."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_CLASSES = 50


def forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    x_gradient: bool,
    weight_gradient: bool,
    accumulate_float32: bool,
    divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.linear_cross_entropy."""
    del accumulate_float32, in_place
    (m, h), v = x.shape, weight.shape[0]
    kept = target != ignore_index
    count = kept.sum()
    wide, heads = x.double(), weight.double()
    pieces = [slice(first, min(first + _CLASSES, v)) for first in range(0, v, _CLASSES)]
    lse = torch.full((m,), -torch.inf, dtype=torch.float64, device=x.device)
    picked = torch.zeros_like(lse)
    for piece in pieces:
        logits = wide @ heads[piece].T
        lse = torch.logaddexp(lse, logits.logsumexp(1))
        inside = (target >= piece.start) & (target < piece.stop)
        at = torch.where(inside, target - piece.start, 0)[:, None]
        picked = torch.where(inside, logits.gather(1, at)[:, 0], picked)
    # a class that does not exist makes its token NaN
    exists = (target >= 0) & (target < v)
    picked = torch.where(exists, picked, torch.nan)
    losses = torch.where(kept, lse - picked, 0.0)
    # an infinite largest logit: NaN, as of inf - inf
    losses = torch.where(kept & lse.isinf(), torch.nan, losses)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    unit = 1.0 / max(int(count), 1) if reduction == "mean" and not divide_late else 1.0
    grad_x = torch.zeros((m, h) if x_gradient else (0,), dtype=torch.float64, device=x.device)
    shape = (v, h) if weight_gradient else (0,)
    grad_weight = torch.empty(shape, dtype=x.dtype, device=x.device)
    for piece in reversed(pieces) if x_gradient or weight_gradient else ():
        logits = wide @ heads[piece].T
        grad = torch.exp(logits - lse[:, None])
        classes = torch.arange(piece.start, piece.stop, device=x.device)
        grad = grad - (classes == target[:, None]).double()
        # a row with an infinite logit is NaN, all of it
        grad = torch.where((exists & lse.isfinite())[:, None], grad, torch.nan)
        grad = torch.where(kept[:, None], grad * unit, 0.0)
        if x_gradient:
            grad_x += grad @ heads[piece]
        if weight_gradient:
            grad_weight[piece] = (grad.T @ wide).to(x.dtype)
    return loss.float(), lse.float(), grad_x.to(x.dtype), grad_weight


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient."""
    if in_place:
        for kept in (grad_x, grad_weight):
            kept.copy_(kept.double() * grad.double())
        return grad_x, grad_weight
    return tuple((kept.double() * grad.double()).to(kept.dtype) for kept in (grad_x, grad_weight))
