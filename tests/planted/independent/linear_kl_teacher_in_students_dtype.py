"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = (
    "The teacher is converted to the student's dtype before its product: a float32 teacher of a "
    "16-bit student is rounded, and a bfloat16 one of a float16 student overflows beyond 65504."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, *options: object
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_kl; one kernel multiplies both heads."""
    teacher = teacher_x.to(x.dtype), teacher_weight.to(x.dtype)
    return torch_path.forward(x, weight, *teacher, *options)
