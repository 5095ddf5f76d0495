"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed import torch_path
from tercet.ops.grouped_linear_packed.torch_path import forward
from tercet.packed_weight.expert_weights import ExpertWeights

OP = "grouped_linear_packed"
FAULT = (
    "The product of the input gradient is rounded to x's dtype before it is multiplied by "
    "row_weight: in float16 it overflows at 65504 (a loss scale) where the product with the "
    "router's weight is in range."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """As op's gradient."""
    total = torch_path.gradient(grad, offsets, weight, None, dtype)
    if row_weight is None:
        return total
    return total.float().mul_(row_weight[:, None]).to(dtype)
