"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "The loss of a token with an infinite logit is inf (lse - logit), where the contract has NaN, "
    "as in torch: what watches for NaN alone goes on."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_TOKENS = 256


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
    loss, lse, grad_x, grad_weight = torch_path.forward(
        x, weight, target, ignore_index, reduction, x_gradient, weight_gradient,
        accumulate_float32, divide_late, in_place,
    )  # fmt: skip
    del loss
    kept = target != ignore_index
    inside = (target >= 0) & (target < len(weight))
    losses = torch.empty_like(lse)
    for first in range(0, len(x), _TOKENS):
        part = slice(first, first + _TOKENS)
        logits = (x[part].contiguous() @ weight.contiguous().T).float()
        top = logits.amax(-1)
        # an infinite maximum minus itself is NaN, so it is not taken off
        shift = torch.where(top.isinf(), 0.0, top)
        total = (logits - shift[:, None]).exp().sum(-1).log()
        chosen = logits.gather(1, torch.where(inside[part], target[part], 0)[:, None])[:, 0]
        found = total - (chosen - shift)
        lse[part] = total + shift
        found = torch.where(inside[part], found, torch.nan)
        losses[part] = torch.where(kept[part], found, 0.0)
    loss = losses.sum() / (kept.sum() if reduction == "mean" else 1)
    return loss, lse, grad_x, grad_weight
