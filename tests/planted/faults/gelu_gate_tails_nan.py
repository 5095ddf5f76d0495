"""A planted fault; FAULT says which."""

from math import pi, sqrt

import torch
from torch import Tensor

from tercet.ops.gelu_gate.torch_path import forward

OP = "gelu_gate"
FAULT = "The slope's cube is not guarded: inf * 0 is NaN for large gates."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_SLOPE = 2 * sqrt(2 / pi)
_CUBE = 0.044715


def gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """As op's gelu_gate_gradient."""
    d, g = grad.float(), gate.float()
    s = torch.sigmoid(_SLOPE * (g + _CUBE * g**3))
    tails = s * (1 - s)
    # where the tails are zero, the slope may be inf, and inf * 0 would be NaN
    curve = g * _SLOPE * (1 + 3 * _CUBE * g.square()) * tails
    return (d * up.float() * (s + curve)).to(gate.dtype), (d * g * s).to(gate.dtype)
