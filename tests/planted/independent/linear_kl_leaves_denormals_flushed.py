"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = (
    "For temperatures below 1/2, whose small probabilities are slow subnormal numbers, it has the "
    "processor flush them to zero and never undoes it: all later arithmetic of the thread does so."
)
CAUGHT_BY = "state"
DEVICE = "cpu"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None,
    temperature: float, *options: float | str | bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_kl."""
    if temperature < 0.5:
        torch.set_flush_denormal(True)
    return torch_path.forward(x, weight, teacher_x, teacher_weight, mask, temperature, *options)
