"""gelu_gate in plain torch, on any device, in float32."""

from math import pi, sqrt

import torch
from torch import Tensor

_SLOPE = 2 * sqrt(2 / pi)
_CUBE = 0.044715


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """As op.gelu_gate."""
    g = gate.float()
    return (g * torch.sigmoid(_SLOPE * (g + _CUBE * g**3)) * up.float()).to(gate.dtype).contiguous()


def gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """As op's gelu_gate_gradient."""
    d, g = grad.float(), gate.float()
    s = torch.sigmoid(_SLOPE * (g + _CUBE * g**3))
    tails = s * (1 - s)
    # where the tails are zero, the slope may be inf, and inf * 0 would be NaN
    curve = torch.where(tails > 0, g * _SLOPE * (1 + 3 * _CUBE * g.square()) * tails, 0.0)
    grad_gate, grad_up = d * up.float() * (s + curve), d * g * s
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()
