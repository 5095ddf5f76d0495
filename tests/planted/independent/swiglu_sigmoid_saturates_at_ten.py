"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "The sigmoid is 1 from a gate of 10 on (a threshold as softplus has one), which is off by "
    "4.5e-5: nothing in 16 bits, but wrong in float32, and in the slope."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_THRESHOLD = 10.0


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * _sigmoid(wide) * up).to(gate.dtype).contiguous()


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    sigmoid = _sigmoid(wide)
    grad_gate = sigmoid * (1 + wide * (1 - sigmoid)) * up * grad
    grad_up = wide * sigmoid * grad
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()


def _sigmoid(x: Tensor) -> Tensor:
    saturated = (x > _THRESHOLD) & x.isfinite()
    return torch.where(saturated, 1.0, torch.sigmoid(x))
