"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = "Of the student's hidden state only the first 4096 columns are read."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_LONGEST = 4096


def forward(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
    *options: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_kl."""
    if x.shape[1] > _LONGEST:
        x = x.clone()
        x[:, _LONGEST:] = 0
    return torch_path.forward(
        x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction, *options
    )
