"""A planted fault; FAULT says which."""

import math

from torch import Tensor

from tercet.ops.linear_kl import torch_path
from tercet.ops.linear_kl.torch_path import gradient

OP = "linear_kl"
FAULT = (
    "beta is compared with 0 and 1 up to 1e-6: a schedule that starts near 0 gets KL(p || q) where "
    "the generalized divergence tends to beta KL(p || q), a million times less, likewise near 1."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None,
    temperature: float, beta: float, reduction: str, *options: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_kl; floats are not compared for equality."""
    for end in (0.0, 1.0):
        if math.isclose(beta, end, abs_tol=1e-6):
            beta = end
    return torch_path.forward(
        x, weight, teacher_x, teacher_weight, mask, temperature, beta, reduction, *options
    )
