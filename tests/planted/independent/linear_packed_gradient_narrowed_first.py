"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import forward
from tercet.packed_weight.weight import PreparedWeight

OP = "linear_packed"
FAULT = (
    "The incoming gradient is converted to x's dtype before the product: with a float32 result of "
    "a float16 x, a gradient beyond 65504 is inf and one below 6e-8 is 0, though the product with "
    "W is in range."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op's gradient."""
    return torch_path.gradient(grad.to(dtype), weight, dtype)
