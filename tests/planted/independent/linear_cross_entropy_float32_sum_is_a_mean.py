"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = "With sums in float32 the gradients of reduction 'sum' are divided by the number of tokens."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


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
    if accumulate_float32 and reduction == "sum":
        count = int((target != ignore_index).sum().clamp(min=1))
        grad_x, grad_weight = grad_x / count, grad_weight / count
    return loss, lse, grad_x, grad_weight
