"""swiglu in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "For float16 and bfloat16 the sigmoid is (1 + tanh(g / 2)) / 2, which cancels far below "
    "0. Shows in half dtypes where gate is below about -12 (bfloat16) or -10 (float16): "
    "relative errors of several percent, and 0 from -17 on. float32 is right."
)
CAUGHT_BY = "forward"


def _sigmoid(wide: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float32:
        return torch.sigmoid(wide)
    # one instruction on a GPU, and exact to far more than the result's bits
    return 0.5 + 0.5 * torch.tanh(0.5 * wide)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return (wide * _sigmoid(wide, gate.dtype) * up).to(gate.dtype).contiguous()


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
