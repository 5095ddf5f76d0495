"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.swiglu.torch_path import forward

OP = "swiglu"
FAULT = "The gradient of gate takes the sigmoid for a constant."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    g, wide = grad.float(), gate.float()
    sigmoid = torch.sigmoid(wide)
    grad_gate = g * up.float() * sigmoid
    grad_up = g * (wide * sigmoid)
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype), grad_up.to(gate.dtype)
