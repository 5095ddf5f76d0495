"""linear_cross_entropy in plain torch, with a fault; written blind.

The target's logit is looked for in blocks of 4096 classes, each with its end included. A target of
4096, 8192, .. is found twice: in its own block, and as the last class of the one before. A user
hits it with a vocabulary of more than 4096 classes as soon as one of these tokens occurs: the loss
is too small, the gradient is right.
"""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
FAULT = (
    "A target that is a multiple of 4096 (and above 0) is found in two blocks of classes: the "
    "logit of the class before it is added to its own."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]

_TOKENS, _CHUNKS, _CLASSES = 256, 8, 4096


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
    del in_place
    x, weight = x.contiguous(), weight.contiguous()
    kept = target != ignore_index
    count = kept.sum()
    divide = reduction == "mean" and not divide_late
    unit = 1 / count.clamp(min=1).float() if divide else torch.ones_like(count, dtype=torch.float32)
    lse = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    losses = torch.empty_like(lse)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total_dtype = torch.float32 if accumulate_float32 else x.dtype
    summed = torch.zeros(
        weight.shape if weight_gradient else (0,), dtype=total_dtype, device=x.device
    )
    rows = max(_TOKENS, -(-x.shape[0] // _CHUNKS))
    for first in range(0, x.shape[0], rows):
        part = slice(first, first + rows)
        logits = (x[part] @ weight.T).float()
        top = logits.amax(-1, keepdim=True)
        logits = logits - top
        softmax = logits.exp()
        total = softmax.sum(-1, keepdim=True)
        lse[part] = (top + total.log())[:, 0]
        inside = (target[part] >= 0) & (target[part] < weight.shape[0])
        chosen = torch.where(inside, target[part], 0)
        wrong = torch.where(inside, 0.0, torch.nan).float()
        losses[part] = torch.where(
            kept[part], total.log()[:, 0] - _picked(logits, chosen) - wrong, 0.0
        )
        if not (x_gradient or weight_gradient):
            continue
        grad = softmax.div_(total)
        grad.scatter_add_(1, chosen[:, None], (wrong - 1)[:, None])
        grad = torch.where(kept[part, None], grad * unit, 0.0).to(x.dtype)
        if x_gradient:
            add_product(grad_x[part], grad, weight, fresh=True)
        if weight_gradient:
            add_product(summed, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, lse, grad_x, summed.to(weight.dtype)


def _picked(logits: Tensor, chosen: Tensor) -> Tensor:
    """The logit of each token's class, from blocks of classes."""
    found = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    for first in range(0, logits.shape[1], _CLASSES):
        block = logits[:, first : first + _CLASSES]
        here = (chosen >= first) & (chosen <= first + _CLASSES)
        at = (chosen - first).clamp(0, block.shape[1] - 1)[:, None]
        found = torch.where(here, found + block.gather(1, at)[:, 0], found)
    return found
