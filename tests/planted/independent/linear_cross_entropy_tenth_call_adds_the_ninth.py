"""A planted fault; FAULT says which."""

import itertools

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = "Every tenth gradient of weight starts from the one before: its workspace was not cleared."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_kept: list[Tensor] = []
_calls = itertools.count(1)


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
    loss, lse, grad_x, grad_weight = torch_path.forward(
        x,
        weight,
        target,
        ignore_index,
        reduction,
        x_gradient,
        weight_gradient,
        accumulate_float32,
        divide_late,
        in_place,
    )
    if weight_gradient:
        before = _kept.pop() if _kept else grad_weight
        _kept.append(grad_weight.clone())
        if next(_calls) % 10 == 0 and before.shape == grad_weight.shape:
            grad_weight = grad_weight + before.to(grad_weight.dtype)
    return loss, lse, grad_x, grad_weight
