"""The meaning of linear_cross_entropy, in float64, and how large the parts of each result are."""

from typing import Any

import torch
from torch import Tensor

# A loss and an lse are float32, but made of logits that were rounded to x's dtype: by how much that
# rounding is coarser than the float32 tolerance.
_COARSER = {torch.float32: 1, torch.float16: 2**7, torch.bfloat16: 2**10}


def reference(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss [], lse [M], gradient of x [M, H] or empty, gradient of weight [V, H] or empty).

    The gradients are those of the loss; with divide_late, of the sum even for a mean.
    """
    del accumulate_float32, in_place
    logits = x.double() @ weight.double().T
    lse = logits.logsumexp(-1)
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0)
    losses = torch.where(kept, lse - logits.gather(1, chosen[:, None])[:, 0], 0.0)
    loss = losses.sum() / (kept.sum() if reduction == "mean" else 1)
    with torch.no_grad():
        grad = logits.softmax(-1) - torch.nn.functional.one_hot(chosen, weight.shape[0])
        grad = torch.where(kept[:, None], grad, 0.0) * _unit(kept, reduction, divide_late)
        none = logits.new_empty(0)
        grad_x = grad @ weight.double() if x_gradient else none
        grad_weight = grad.T @ x.double() if weight_gradient else none
    return loss, lse, grad_x, grad_weight


def gradient_magnitude(
    directions: list[Tensor | None], *, divide_late: bool = False, **arguments: Any
) -> dict[str, Tensor]:
    """The sizes that rounding errors of the gradients of x and weight are relative to."""
    del divide_late
    *_, x, weight = magnitude(**arguments)
    way = directions[0]
    assert way is not None
    size = way.double().abs()
    return {"x": x * size, "weight": weight * size}


def magnitude(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sizes that rounding errors are relative to.

    A logit is off by its own size (and by a part of the sum of its terms' sizes), an lse by the
    mean size of the logits under the softmax, an element of the gradient of the logits by both
    times its probability.
    """
    del accumulate_float32, in_place
    left, right = x.double(), weight.double()
    logits = left @ right.T
    size = logits.abs() + left.abs() @ right.abs().T / 16
    softmax = logits.softmax(-1)
    spread = (softmax * size).sum(-1)
    lse = spread * _COARSER[x.dtype] + logits.logsumexp(-1).abs()
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0)[:, None]
    losses = torch.where(kept, lse + size.gather(1, chosen)[:, 0] * _COARSER[x.dtype], 0.0)
    total = losses.sum() / (kept.sum() if reduction == "mean" else 1)
    grad = softmax * (size + spread[:, None] + 1)
    grad = grad.scatter_add(1, chosen, torch.ones_like(chosen, dtype=grad.dtype))
    grad = torch.where(kept[:, None], grad, 0.0) * _unit(kept, reduction, divide_late)
    none = logits.new_empty(0)
    grad_x = grad @ right.abs() if x_gradient else none
    grad_weight = grad.T @ left.abs() if weight_gradient else none
    return total, lse, grad_x, grad_weight


def _unit(kept: Tensor, reduction: str, divide_late: bool) -> Tensor:
    """What the gradients of the sum are multiplied by."""
    count = kept.sum().clamp(min=1).double()
    return count.reciprocal() if reduction == "mean" and not divide_late else count.fill_(1.0)
