"""A planted fault; FAULT says which."""

from math import pi, sqrt

import torch
from torch import Tensor

from tercet.ops.gelu_gate.torch_path import gradient

OP = "gelu_gate"
FAULT = "GELU by the error function, not the tanh form that the op defines: off by up to 5e-4."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_SLOPE = 2 * sqrt(2 / pi)
_CUBE = 0.044715


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """As op.gelu_gate."""
    g = gate.float()
    return (g * 0.5 * (1 + torch.erf(g / 2**0.5)) * up.float()).to(gate.dtype)
