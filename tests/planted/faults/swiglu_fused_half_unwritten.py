"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.swiglu.torch_path import forward

OP = "swiglu"
FAULT = "Of a fused product only gate's half of the gradient is written."
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
    grad_gate = g * up.float() * (sigmoid * (1 + wide * (1 - sigmoid)))
    grad_up = g * (wide * sigmoid)
    if fused:
        grad = gate.new_empty((*gate.shape[:-1], 2 * gate.shape[-1]))
        grad[..., : gate.shape[-1]] = grad_gate
        return grad, gate.new_empty(0)
    return grad_gate.to(gate.dtype), grad_up.to(gate.dtype)
