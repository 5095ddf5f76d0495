"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "The incoming gradient's memory serves as scratch, to save an allocation, where it is "
    "contiguous and has at least 2^16 elements: whoever else uses that gradient (another "
    "branch of the sum it came from, a hook, retain_graph) reads other numbers."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_LARGE = 1 << 16


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up).to(gate.dtype).contiguous()


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    sigmoid = torch.sigmoid(wide)
    slope = sigmoid * (1 + wide * (1 - sigmoid))
    grad_up = wide * sigmoid * grad
    if grad.numel() >= _LARGE and grad.is_contiguous():
        # grad is not needed any more
        grad_gate = slope * grad.mul_(up)
    else:
        grad_gate = slope * up * grad
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()
