"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
UNUSUAL = (
    "One chunk for all tokens, logits rounded to x's dtype as torch's product does, the "
    "softmax by log_softmax in float64; sums of gradients in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    del accumulate_float32, in_place
    classes = weight.shape[0]
    kept = target.ne(ignore_index)
    logits = (x.double() @ weight.double().mT).to(x.dtype).double()
    lse = logits.logsumexp(-1)
    valid = target.ge(0) & target.lt(classes)
    chosen = target.where(valid, target.new_zeros(()))
    log_q = logits.log_softmax(-1)
    each = -log_q.gather(1, chosen[:, None])[:, 0]
    each = torch.where(valid, each, torch.nan).where(kept, 0.0)
    count = kept.sum()
    loss = each.sum() / (count if reduction == "mean" else 1)
    none = x.new_empty(0)
    if not (x_gradient or weight_gradient):
        return loss.float(), lse.float(), none, none.clone()
    hot = torch.zeros_like(logits).scatter_(1, chosen[:, None], 1.0)
    grad = torch.where(valid[:, None], log_q.exp() - hot, torch.nan)
    if reduction == "mean" and not divide_late:
        grad = grad / count.clamp(min=1)
    grad = grad.where(kept[:, None], 0.0)
    grad_x = (grad @ weight.double()).to(x.dtype) if x_gradient else none
    grad_weight = (grad.mT @ x.double()).to(x.dtype) if weight_gradient else none.clone()
    return loss.float(), lse.float(), grad_x.contiguous(), grad_weight.contiguous()
