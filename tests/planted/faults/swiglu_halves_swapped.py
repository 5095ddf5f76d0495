"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "Of a fused product the first half is taken for up and the second for gate."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        up, gate = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up.float()).to(gate.dtype)
