"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "The kept gradients of a mean are divided by the number of tokens also where they are to be "
    "divided late (float16), so that they are divided twice: float16's training stands still, the "
    "loss is right."
)
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
    # late or not: a mean is a mean
    del divide_late
    return torch_path.forward(
        x, weight, target, ignore_index, reduction, x_gradient, weight_gradient,
        accumulate_float32, False, in_place,
    )  # fmt: skip
