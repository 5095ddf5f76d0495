"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
UNUSUAL = (
    "Chunks of three tokens from the last to the first, logits in float64 and not rounded to "
    "x's dtype, weight gradient summed in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy; targets are classes or ignore_index, as the op sees to."""
    del accumulate_float32, in_place
    m, w = len(x), weight.double()
    kept = target != ignore_index
    count = int(kept.sum())
    unit = 1 / max(count, 1) if reduction == "mean" and not divide_late else 1.0
    lse = torch.empty(m, dtype=torch.float32)
    losses = torch.zeros(m, dtype=torch.float64)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype)
    sums = torch.zeros(w.shape if weight_gradient else (0,), dtype=torch.float64)
    for first in range((m - 1) // 3 * 3 if m else -1, -1, -3):
        part = slice(first, min(first + 3, m))
        hidden, some = x[part].double(), kept[part]
        logits = torch.einsum("mh,vh->mv", hidden, w)
        lse[part] = logits.logsumexp(1).float()
        chosen = target[part].where(some, 0)
        logarithm = logits.log_softmax(1)
        losses[part] = torch.where(some, -logarithm.gather(1, chosen[:, None])[:, 0], 0.0)
        if not (x_gradient or weight_gradient):
            continue
        grad = logarithm.exp()
        grad[torch.arange(len(chosen)), chosen] -= 1.0
        grad = torch.where(some[:, None], grad, 0.0) * unit
        if x_gradient:
            grad_x[part] = (grad @ w).float().to(x.dtype)
        if weight_gradient:
            sums += grad.T @ hidden
    loss = losses.sum()
    if reduction == "mean":
        loss = loss / count if count else torch.full_like(loss, float("nan"))
    return loss.float(), lse, grad_x, sums.float().to(weight.dtype)
