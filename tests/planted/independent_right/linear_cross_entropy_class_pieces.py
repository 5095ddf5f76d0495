"""linear_cross_entropy in plain torch: pieces of classes instead of tokens, in float64."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
UNUSUAL = (
    "Logits are made twice, in pieces of 300 classes for all tokens at once, in float64: "
    "first for a running logsumexp, then for both gradients, each rounded once at the end."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]

_PIECE = 300


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
    del accumulate_float32, in_place
    wide, classes = x.double(), weight.shape[0]
    kept = target != ignore_index
    inside = (target >= 0) & (target < classes)
    # a target that is neither a class nor ignored makes its loss and gradient NaN
    wrong = torch.where(inside, 0.0, torch.nan).double()
    count = kept.sum()
    top = wide.new_full((len(x),), -torch.inf)
    total, picked = torch.zeros_like(top), torch.zeros_like(top)
    for first in range(0, classes, _PIECE):
        logits = wide @ weight[first : first + _PIECE].double().T
        above = torch.maximum(top, logits.amax(-1))
        base = torch.where(above == -torch.inf, 0.0, above)
        total = total * (top - base).exp() + (logits - base[:, None]).exp().sum(-1)
        top = above
        here = target - first
        found = (here >= 0) & (here < logits.shape[1])
        chosen = logits.gather(1, torch.where(found, here, 0)[:, None])[:, 0]
        picked = torch.where(found, chosen, picked)
    lse = top + total.log()
    losses = torch.where(kept, lse - picked + wrong, 0.0)
    loss = (losses.sum() / (count if reduction == "mean" else 1)).float()
    grad_x = wide.new_zeros(x.shape if x_gradient else (0,))
    grad_weight = wide.new_zeros(weight.shape if weight_gradient else (0,))
    divide = reduction == "mean" and not divide_late
    unit = count.clamp(min=1).double().reciprocal() if divide else 1.0
    for first in range(0, classes if x_gradient or weight_gradient else 0, _PIECE):
        part = weight[first : first + _PIECE].double()
        share = (wide @ part.T - lse[:, None]).exp()
        here = torch.arange(first, first + len(part), device=x.device)
        share = share - (target[:, None] == here).double() + wrong[:, None]
        share = torch.where(kept[:, None], share, 0.0) * unit
        if x_gradient:
            grad_x += share @ part
        if weight_gradient:
            grad_weight[first : first + _PIECE] = share.T @ wide
    return loss, lse.float(), grad_x.to(x.dtype), grad_weight.to(weight.dtype)
