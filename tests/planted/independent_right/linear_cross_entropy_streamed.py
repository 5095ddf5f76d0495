"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
UNUSUAL = (
    "Streams over 48 classes at a time for all tokens in float64, and computes the logits a "
    "second time for the gradients."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_CLASSES = 48


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
    wide, kept = x.double(), target != ignore_index
    count = kept.sum()
    top = wide.new_full((m,), -1e300)  # not -inf, so that inf - inf does not arise
    total, picked = wide.new_zeros(m), wide.new_full((m,), float("nan"))
    for first in range(0, v, _CLASSES):
        logits = wide @ weight[first : first + _CLASSES].double().T
        now = torch.maximum(top, logits.amax(-1))
        total = total * (top - now).exp() + (logits - now[:, None]).exp().sum(-1)
        top = now
        hot = target - first
        here = (hot >= 0) & (hot < logits.shape[1])
        at = torch.where(here, hot, 0)[:, None]
        picked = torch.where(here, logits.gather(1, at)[:, 0], picked)
    lse = top + total.log()
    losses = torch.where(kept, total.log() - (picked - top), 0.0)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    grad_x = wide.new_zeros((m, h) if x_gradient else (0,))
    grad_weight = wide.new_zeros((v, h) if weight_gradient else (0,))
    unit = 1.0 / count.clamp(min=1).double() if reduction == "mean" and not divide_late else 1.0
    for first in range(0, v if x_gradient or weight_gradient else 0, _CLASSES):
        part = weight[first : first + _CLASSES].double()
        grad = (wide @ part.T - top[:, None]).exp() / total[:, None]
        classes = torch.arange(first, first + len(part), device=x.device)
        grad = grad - (target[:, None] == classes).double()
        # a target that is no class makes its gradient NaN
        grad = torch.where(picked.isnan()[:, None], float("nan"), grad)
        grad = torch.where(kept[:, None], grad, 0.0) * unit
        if x_gradient:
            grad_x += grad @ part
        if weight_gradient:
            grad_weight[first : first + len(part)] = grad.T @ wide
    return loss.float(), lse.float(), grad_x.to(x.dtype), grad_weight.to(x.dtype)
