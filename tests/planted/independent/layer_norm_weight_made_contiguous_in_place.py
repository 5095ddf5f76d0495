"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "A weight or bias with a stride gets new, contiguous memory through `.data`, for good: its "
    "values stay, but it no longer shares the storage it was a view of, so a tied or flat "
    "parameter falls apart."
)
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm, with unit strides for the kernel."""
    for vector in (weight, bias):
        if vector is not None and not vector.is_contiguous():
            # once: later calls then find it as the kernel reads it
            vector.data = vector.data.contiguous()
    return torch_path.forward(x, weight, bias, eps)
