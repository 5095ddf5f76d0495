"""linear_cross_entropy in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
UNUSUAL = (
    "Tiles of the vocabulary with a running maximum and sum, all tokens at once; the "
    "gradients in a second walk over the tiles, the logits computed again; everything in "
    "float32."
)

__all__ = ["forward", "gradient"]

_TILE = 192


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
    m, classes, wide = len(x), len(weight), x.float().contiguous()
    kept = target != ignore_index
    count = kept.sum()
    top = torch.full((m, 1), -torch.inf, dtype=torch.float32, device=x.device)
    total, chosen = torch.zeros_like(top), torch.zeros_like(top)
    for first in range(0, classes, _TILE):
        logits = wide @ weight[first : first + _TILE].float().T
        above = torch.maximum(top, logits.amax(-1, keepdim=True))
        shift = torch.where(above == -torch.inf, torch.zeros_like(above), above)
        before = torch.where(top == -torch.inf, torch.zeros_like(top), (top - shift).exp())
        total = total * before + (logits - shift).exp().sum(-1, keepdim=True)
        top = above
        here = (target >= first) & (target < first + logits.shape[1])
        picked = logits.gather(1, torch.where(here, target - first, 0)[:, None])
        chosen = torch.where(here[:, None], picked, chosen)
    known = (target >= 0) & (target < classes)
    losses = (total.log() - (chosen - top))[:, 0]
    losses = torch.where(known, losses, torch.full_like(losses, torch.nan))
    losses = torch.where(kept, losses, torch.zeros_like(losses))
    loss = losses.sum() / (count if reduction == "mean" else 1)
    lse = (top + total.log())[:, 0]
    none = x.new_empty(0)
    if not (x_gradient or weight_gradient):
        return loss, lse, none, none.clone()
    divide = reduction == "mean" and not divide_late
    unit = torch.ones_like(count, dtype=torch.float32)
    if divide:
        unit = unit / count.clamp(min=1)
    grad_x = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
    for first in range(0, classes, _TILE):
        tile = weight[first : first + _TILE].float()
        grad = (wide @ tile.T - top).exp() / total
        columns = torch.arange(first, first + len(tile), device=x.device)
        grad = grad - (target[:, None] == columns).float()
        grad = torch.where(known[:, None], grad, torch.full_like(grad, torch.nan))
        grad = torch.where(kept[:, None], grad * unit, torch.zeros_like(grad))
        if x_gradient:
            grad_x += grad @ tile
        if weight_gradient:
            grad_weight[first : first + len(tile)] = grad.T @ wide
    return (
        loss,
        lse,
        grad_x.to(x.dtype) if x_gradient else none,
        grad_weight.to(weight.dtype) if weight_gradient else none.clone(),
    )
