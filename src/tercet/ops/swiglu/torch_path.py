"""swiglu in plain torch, on any device, in float32."""

import torch
from torch import Tensor


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up.float()).to(gate.dtype)


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
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype), grad_up.to(gate.dtype)
