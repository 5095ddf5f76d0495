"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "gate and up that lie side by side are read as one matrix of rows at gate's row stride,"
    " which is wrong where the leading axes do not fall into one, as in a slice along the "
    "tokens."
)
DEVICE = "any"
CAUGHT_BY = "strided"
__all__ = ["forward", "gradient"]


def _rows(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Both as matrices; the halves of one tensor without a copy."""
    n = gate.shape[-1]
    beside = up.data_ptr() == gate.data_ptr() + n * gate.element_size()
    if not beside or gate.dim() < 2 or gate.stride(-1) != 1 or up.stride() != gate.stride():
        return gate, up
    size, stride = (gate.shape[:-1].numel(), n), (gate.stride(-2), 1)
    return gate.as_strided(size, stride), up.as_strided(size, stride)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    shape = gate.shape if up is not None else (*gate.shape[:-1], gate.shape[-1] // 2)
    gate, up = gate.tensor_split(2, -1) if up is None else _rows(gate, up)
    wide = gate.float()
    y = (wide * torch.sigmoid(wide) * up).to(gate.dtype).contiguous()
    return y.reshape(shape)


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
