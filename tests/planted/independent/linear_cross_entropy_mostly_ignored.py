"""linear_cross_entropy in plain torch, with a fault; written blind.

Where more than half of the tokens are ignored, the gradients are computed for the kept ones alone
and put into memory that was never set: the ignored tokens' rows are whatever lay there, not 0. A
user hits it in fine-tuning on answers, whose long prompts are ignored: gradients of the prompts'
positions are noise, or NaN, depending on what ran before.
"""

import torch
from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "Where more than half of the tokens are ignored, their rows of the gradient of x are memory "
    "that was never written."
)
CAUGHT_BY = "poison"
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
    more = accumulate_float32, divide_late, in_place
    kept = (target != ignore_index).nonzero()[:, 0]
    few = 0 < 2 * len(kept) < len(target)
    if not few or not x_gradient:
        return torch_path.forward(
            x, weight, target, ignore_index, reduction, x_gradient, weight_gradient, *more
        )
    loss, lse, _, _ = torch_path.forward(
        x, weight, target, ignore_index, reduction, False, False, *more
    )
    _, _, some, summed = torch_path.forward(
        x[kept], weight, target[kept], ignore_index, reduction, True, weight_gradient, *more
    )
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_x[kept] = some
    return loss, lse, grad_x, summed
