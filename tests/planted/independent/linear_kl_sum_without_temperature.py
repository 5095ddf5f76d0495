"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = "The sum, unlike the mean, is not multiplied by the square of the temperature."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


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
    loss, grad_x, grad_weight = torch_path.forward(
        x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction, *options
    )
    if reduction == "sum":
        loss = loss / temperature**2
    return loss, grad_x, grad_weight
