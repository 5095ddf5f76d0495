"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "x and residual that begin at one address are taken for one tensor and read once, as 2 x: "
    "wrong where they are different views of the same memory, such as a matrix and its transpose."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm; x + x is read once."""
    if residual is not None and residual.data_ptr() == x.data_ptr():
        residual = x
    return torch_path.forward(x, weight, residual, eps)
