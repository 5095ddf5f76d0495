"""swiglu in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "swiglu"
FAULT = (
    "Y lies in one of 16 buffers a shape, which are used in turn. Shows when a result is "
    "still needed after 16 further calls of the same shape and dtype."
)
CAUGHT_BY = "forward"

_RING = 16
_BUFFERS: dict = {}


def _next(shape: tuple, like: Tensor) -> Tensor:
    key = (shape, like.dtype, like.device, torch.is_inference_mode_enabled())
    ring = _BUFFERS.setdefault(key, [[], 0])
    buffers, turn = ring
    ring[1] = (turn + 1) % _RING
    if len(buffers) < _RING:
        buffers.append(torch.empty(shape, dtype=like.dtype, device=like.device))
        return buffers[-1]
    return buffers[turn]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu. An MLP of 16 layers and less needs no allocation."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return _next(tuple(gate.shape), gate).copy_(wide * torch.sigmoid(wide) * up)


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
