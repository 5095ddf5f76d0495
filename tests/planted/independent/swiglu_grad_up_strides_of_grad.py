"""swiglu in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "Grad_up is allocated like grad, so it has grad's strides. Shows only with up given and "
    "an incoming gradient that is dense but transposed: the values are right, the strides are "
    "not those of the fake."
)
CAUGHT_BY = "forward"


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
    grad_gate = sigmoid * (1 + wide * (1 - sigmoid)) * up * grad
    grad_up = wide * sigmoid * grad
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return (
        grad_gate.to(gate.dtype).contiguous(),
        torch.empty_like(grad, dtype=gate.dtype).copy_(grad_up),
    )
