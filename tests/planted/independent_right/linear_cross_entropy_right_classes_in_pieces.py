"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
FAULT = "None: pieces of 24 classes of all tokens, logits made twice, sums in float64."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward", "gradient"]

_PIECE = 24


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool, accumulate_float32: bool, divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    del accumulate_float32, in_place
    (m, _), classes, kept = x.shape, weight.shape[0], target != ignore_index
    count, left = kept.sum(), x.float()
    top = torch.full((m, 1), -torch.inf, dtype=torch.float64, device=x.device)
    total, picked = torch.zeros_like(top), torch.zeros_like(top)
    pieces = [slice(first, first + _PIECE) for first in range(0, classes, _PIECE)]

    def logits_of(piece: slice) -> tuple[Tensor, Tensor]:
        """Logits in x's dtype, widened; and which of them are those of the tokens' targets."""
        logits = (left @ weight[piece].float().T).to(x.dtype).double()
        ids = torch.arange(classes, device=x.device)[piece]
        return logits, target[:, None] == ids

    for piece in pieces:
        logits, chosen = logits_of(piece)
        higher = torch.maximum(top, logits.amax(-1, keepdim=True))
        base = torch.where(higher == -torch.inf, 0.0, higher)
        total = total * (top - base).exp() + (logits - base).exp().sum(-1, keepdim=True)
        picked += torch.where(chosen, logits, 0.0).sum(-1, keepdim=True)
        top = higher
    lse = torch.where(top.isinf(), torch.nan, top + total.log())
    loss = torch.where(kept, (lse - picked)[:, 0], 0.0).sum()
    loss = loss / (count if reduction == "mean" else 1)
    unit = count.clamp(min=1).double().reciprocal()
    unit = unit if reduction == "mean" and not divide_late else torch.ones_like(unit)
    grad_x = torch.zeros(x.shape if x_gradient else (0,), device=x.device, dtype=torch.float64)
    grad_weight = torch.empty(
        weight.shape if weight_gradient else (0,), dtype=x.dtype, device=x.device
    )
    for piece in pieces if x_gradient or weight_gradient else []:
        logits, chosen = logits_of(piece)
        grad = torch.where(kept[:, None], ((logits - lse).exp() - chosen.double()) * unit, 0.0)
        if x_gradient:
            grad_x += grad @ weight[piece].double()
        if weight_gradient:
            grad_weight[piece] = (grad.T @ x.double()).to(x.dtype)
    return loss.float(), lse[:, 0].float(), grad_x.to(x.dtype), grad_weight
