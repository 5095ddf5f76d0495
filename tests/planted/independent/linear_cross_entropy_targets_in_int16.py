"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = "Targets are held in 16 bits: classes from 32768 on are taken for others."
CAUGHT_BY = "forward"
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
    narrow = target.to(torch.int16).to(torch.int64) % weight.shape[0]
    target = torch.where(target == ignore_index, target, narrow)
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
