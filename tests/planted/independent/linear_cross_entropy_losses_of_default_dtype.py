"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_cross_entropy import torch_path
from tercet.ops.linear_cross_entropy.torch_path import gradient

OP = "linear_cross_entropy"
FAULT = (
    "The tokens' logarithms of sums and their losses lie in buffers of torch's default dtype: "
    "under `torch.set_default_dtype(torch.bfloat16)` they have 8 bits before they are added up."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_ROWS = 256


def forward(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str,
    x_gradient: bool, weight_gradient: bool, *options: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_cross_entropy."""
    gradients = x_gradient or weight_gradient
    losses = torch.zeros(len(x), device=x.device)
    lse, grads = torch.zeros(len(x), device=x.device), (x.new_empty(0), x.new_empty(0))
    for first in range(0, len(x), _ROWS):
        part = slice(first, first + _ROWS)
        loss, some, _, _ = torch_path.forward(
            x[part], weight, target[part], ignore_index, "sum", False, False, *options
        )
        lse[part], losses[first] = some, loss
    if gradients:
        *_, grad_x, grad_weight = torch_path.forward(
            x, weight, target, ignore_index, reduction, x_gradient, weight_gradient, *options
        )
        grads = grad_x, grad_weight
    count = (target != ignore_index).sum()
    loss = losses.sum().float() / (count if reduction == "mean" else 1)
    return loss, lse.float(), *grads
