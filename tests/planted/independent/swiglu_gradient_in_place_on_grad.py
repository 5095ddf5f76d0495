"""swiglu in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "The backward computes in place on `grad.float().contiguous()`, which is grad itself when "
    "it is float32 and contiguous. Shows in float32: the incoming gradient is overwritten, "
    "which another user of it then reads."
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
    own = grad.float().contiguous()
    grad_up = wide * sigmoid * own
    # own is a copy: no further one is needed
    grad_gate = own.mul_(up).mul_(sigmoid * (1 + wide * (1 - sigmoid)))
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    # an output may not be an input
    first = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device).copy_(grad_gate)
    return first, grad_up.to(gate.dtype).contiguous()
