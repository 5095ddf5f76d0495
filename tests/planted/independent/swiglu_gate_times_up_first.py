"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "gate * up is formed before it is multiplied by the sigmoid: in float32 and bfloat16 it "
    "overflows to infinity where a large up meets a gate far below zero, although y is finite."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * up * torch.sigmoid(wide)).to(gate.dtype).contiguous()
