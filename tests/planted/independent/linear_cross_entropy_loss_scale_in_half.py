"""linear_cross_entropy in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product

OP = "linear_cross_entropy"
FAULT = (
    "The incoming gradient is rounded to x's dtype before it multiplies the kept gradients. "
    "Shows in float16 where it passes 65504 (a loss scale of 65536) or is below 2^-14 (a mean "
    "over many tokens); float32 and bfloat16 are right."
)
CAUGHT_BY = "forward"

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
        grad = torch.where(kept[part, None], grad * unit, 0.0).to(x.dtype)
        if x_gradient:
            add_product(grad_x[part], grad, weight, fresh=True)
        if weight_gradient:
            add_product(summed_weight, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, lse, grad_x, summed_weight.to(weight.dtype)


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_cross_entropy_gradient: both times the incoming scalar."""
    factor = grad.to(grad_x.dtype)
    if in_place:
        return grad_x.mul_(factor), grad_weight.mul_(factor)
    return grad_x * factor, grad_weight * factor
