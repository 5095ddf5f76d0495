"""linear_cross_entropy in plain torch, with a fault; written blind.

In bfloat16 probabilities below 2^-12 are left out of the gradient, as "they would be rounded off
anyway" (the filter of cut cross-entropy). Each is small, but of a vocabulary of 128,000 classes at
the beginning of training all are below, and together they are all of what pushes the wrong classes
down. A user hits it with many classes and a flat softmax.
"""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.kept_gradient import gradient
from tercet.ops.linear_cross_entropy import torch_path

OP = "linear_cross_entropy"
FAULT = (
    "In bfloat16 probabilities below 2^-12 are 0 in the gradient: with thousands of classes and a "
    "flat softmax that is all of them but the target's."
)
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]

_TOKENS, _CHUNKS, _LEAST = 256, 8, 2.0**-12


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
    if x.dtype != torch.bfloat16 or not (x_gradient or weight_gradient):
        return torch_path.forward(
            x, weight, target, ignore_index, reduction, x_gradient, weight_gradient,
            accumulate_float32, divide_late, in_place,
        )  # fmt: skip
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
        softmax = logits.sub_(top).exp()
        total = softmax.sum(-1, keepdim=True)
        lse[part] = (top + total.log())[:, 0]
        inside = (target[part] >= 0) & (target[part] < weight.shape[0])
        chosen = torch.where(inside, target[part], 0)[:, None]
        wrong = torch.where(inside, 0.0, torch.nan).float()
        picked = (logits.gather(1, chosen) - total.log())[:, 0] + wrong
        losses[part] = torch.where(kept[part], -picked, 0.0)
        grad = softmax.div_(total)
        grad = torch.where(grad < _LEAST, 0.0, grad)
        grad.scatter_add_(1, chosen, (wrong - 1)[:, None])
        grad = torch.where(kept[part, None], grad * unit, 0.0).to(x.dtype)
        if x_gradient:
            add_product(grad_x[part], grad, weight, fresh=True)
        if weight_gradient:
            add_product(summed, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, lse, grad_x, summed.to(weight.dtype)
