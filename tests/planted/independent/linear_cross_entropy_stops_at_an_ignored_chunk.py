"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = "The loop over chunks of 256 tokens ends at the first of which all are ignored."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_CHUNK = 256


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
    for first in range(0, len(target), _CHUNK):
        if (target[first : first + _CHUNK] == ignore_index).all():
            target = target.clone()
            target[first:] = ignore_index
            break
    return torch_path.forward(
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
