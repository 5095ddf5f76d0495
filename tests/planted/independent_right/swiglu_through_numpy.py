"""A right but unusual kernel; UNUSUAL says how."""

import numpy
import torch
from torch import Tensor

OP = "swiglu"
UNUSUAL = "Right, but unusual: numpy computes gate / (1 + exp(-gate)) * up in float64, on copies."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    dtype = gate.dtype
    if up is None:
        gate, up = gate.chunk(2, -1) if gate.shape[-1] else (gate, gate)
    g, u = _numbers(gate), _numbers(up)
    return torch.from_numpy(numpy.ascontiguousarray(g * _sigmoid(g) * u)).to(dtype)


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    dtype, fused = gate.dtype, up is None
    if up is None:
        gate, up = gate.chunk(2, -1) if gate.shape[-1] else (gate, gate)
    g, u, d = _numbers(gate), _numbers(up), _numbers(grad)
    s, tail = _sigmoid(g), _sigmoid(-g)
    with numpy.errstate(all="ignore"):
        parts = (s * (1 + g * tail) * u * d, g * s * d)
    if fused:
        joined = numpy.concatenate(parts, -1)
        return torch.from_numpy(joined).to(dtype), torch.empty(0, dtype=dtype)
    grad_gate, grad_up = (torch.from_numpy(numpy.ascontiguousarray(p)).to(dtype) for p in parts)
    return grad_gate, grad_up


def _numbers(x: Tensor) -> numpy.ndarray:
    return x.detach().double().contiguous().numpy()


def _sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    """By the exponential of -|x|, which cannot overflow."""
    with numpy.errstate(all="ignore"):
        e = numpy.exp(-numpy.abs(x))
        return numpy.where(x >= 0, 1 / (1 + e), e / (1 + e))
