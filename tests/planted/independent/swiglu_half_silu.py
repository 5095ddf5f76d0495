"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "Silu(gate) is rounded to float16 before it meets up: where gate is below about -10 it is "
    "a subnormal number of few bits."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    if gate.dtype == torch.float16:
        return (torch.nn.functional.silu(gate).float() * up.float()).to(gate.dtype).contiguous()
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up).to(gate.dtype).contiguous()


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    sigmoid = torch.sigmoid(wide)
    grad_gate = sigmoid * (1 + wide * (1 - sigmoid)) * up * grad
    grad_up = wide * sigmoid * grad
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()
