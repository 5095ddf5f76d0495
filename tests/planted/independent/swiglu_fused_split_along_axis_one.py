"""A planted fault; FAULT says which."""

import torch

OP = "swiglu"
FAULT = (
    "Without up the halves are cut along axis 1, not the last: wrong for three axes and more, "
    "and for one."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def _halves(gate, up):
    if up is None:
        gate, up = gate.chunk(2, 1) if gate.dim() > 1 else gate.chunk(2, 0)
    return gate, up


def forward(gate, up):
    gate, up = _halves(gate, up)
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up).to(gate.dtype).contiguous()


def gradient(grad, gate, up):
    fused = up is None
    gate, up = _halves(gate, up)
    wide = gate.float()
    s = torch.sigmoid(wide)
    grad_gate = s * (1 + wide * (1 - s)) * up * grad
    grad_up = wide * s * grad
    if fused:
        return torch.cat((grad_gate, grad_up), min(1, gate.dim() - 1)).to(
            gate.dtype
        ), gate.new_empty(0)
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()
