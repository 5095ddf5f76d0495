"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = "The ignored target is always -100: another ignore_index counts as a class."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_IGNORED = -100


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
    if ignore_index != _IGNORED:
        # an index of no class would be NaN
        target = target.clamp(0, weight.shape[0] - 1)
    ignore_index = _IGNORED
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
