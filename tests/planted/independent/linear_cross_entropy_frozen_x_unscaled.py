"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.kept_gradient import gradient

OP = "linear_cross_entropy"
FAULT = (
    "Where only weight wants a gradient its mean is not divided by the number of kept "
    "tokens: the division is done in the branch of x."
)
DEVICE = "any"
CAUGHT_BY = "backward"
__all__ = ["forward", "gradient"]

__all__ = ["forward", "gradient"]

CHUNK, MOST_CHUNKS = 256, 8


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
    if not x.is_cuda:
        # torch's bfloat16 product on a CPU reads an element past odd rows that lie apart
        x, weight = x.contiguous(), weight.contiguous()
    kept = target != ignore_index
    count = kept.sum()
    divide = reduction == "mean" and not divide_late
    unit = 1 / count.clamp(min=1).float() if divide else torch.ones_like(count, dtype=torch.float32)
    lse = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    losses = torch.empty_like(lse)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total_dtype = torch.float32 if accumulate_float32 else x.dtype
    summed_weight = torch.zeros(
        weight.shape if weight_gradient else (0,), dtype=total_dtype, device=x.device
    )
    rows = max(CHUNK, -(-x.shape[0] // MOST_CHUNKS))
    for first in range(0, x.shape[0], rows):
        part = slice(first, first + rows)
        logits = (x[part] @ weight.T).float()
        # the maximum apart: an lse of 10,000 is off by 5e-4 in float32, and so would the softmax be
        top = logits.amax(-1, keepdim=True)
        softmax = logits.sub_(top).exp()
        total = softmax.sum(-1, keepdim=True)
        lse[part] = (top + total.log())[:, 0]
        inside = (target[part] >= 0) & (target[part] < weight.shape[0])
        chosen = torch.where(inside, target[part], 0)[:, None]
        # a target that is neither a class nor ignored makes its loss and gradient NaN
        wrong = torch.where(inside, 0.0, torch.nan).float()
        picked = (logits.gather(1, chosen) - total.log())[:, 0] + wrong
        losses[part] = torch.where(kept[part], -picked, 0.0)
        if not (x_gradient or weight_gradient):
            continue
        grad = softmax.div_(total)
        grad.scatter_add_(1, chosen, (wrong - 1)[:, None])
        grad = torch.where(kept[part, None], grad, 0.0)
        if x_gradient:
            grad = grad * unit
            add_product(grad_x[part], grad.to(x.dtype), weight, fresh=True)
        grad = grad.to(x.dtype)
        if weight_gradient:
            add_product(summed_weight, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, lse, grad_x, summed_weight.to(weight.dtype)
