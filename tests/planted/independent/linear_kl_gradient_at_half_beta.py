"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = "The loss is of the given beta, the gradient of a beta between 0 and 1 always of 0.5."
CAUGHT_BY = "backward"
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
    tensors = (x, weight, teacher_x, teacher_weight, mask, temperature)
    loss, grad_x, grad_weight = torch_path.forward(*tensors, beta, reduction, *options)
    if 0 < beta < 1:
        _, grad_x, grad_weight = torch_path.forward(*tensors, 0.5, reduction, *options)
    return loss, grad_x, grad_weight
