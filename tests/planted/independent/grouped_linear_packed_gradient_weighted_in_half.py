"""grouped_linear_packed in plain torch, with a fault; written blind.

In the gradient, row weights are multiplied into the incoming gradient in its own dtype, before the
product. In float16 a gradient of 1e-5 times a router's probability of 1e-3 is less than float16
has numbers for: it comes out as 0, or with a bit or two. A user hits it in float16 training, with
tokens that an expert gets with a small probability.
"""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed import torch_path
from tercet.ops.grouped_linear_packed.torch_path import forward
from tercet.packed_weight.expert_weights import ExpertWeights

OP = "grouped_linear_packed"
FAULT = (
    "The gradient is multiplied by row_weight in its own dtype before the product: small ones in "
    "float16 underflow."
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
    """As op's gradient with respect to x."""
    if row_weight is not None:
        grad = grad * row_weight.to(grad.dtype)[:, None]
    return torch_path.gradient(grad, offsets, weight, None, dtype)
