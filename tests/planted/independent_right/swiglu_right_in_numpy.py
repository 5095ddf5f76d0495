"""A right kernel that is unusual; FAULT says how."""

import numpy as np
import torch
from torch import Tensor

OP = "swiglu"
FAULT = "None: numpy in float64, the sigmoid from exp(-|gate|), warnings off within the call only."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward", "gradient"]


def _array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def _sigmoid(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sigmoid(g) and 1 - sigmoid(g)."""
    small = np.exp(-np.abs(g))
    large, rest = 1 / (1 + small), small / (1 + small)
    return np.where(g >= 0, large, rest), np.where(g >= 0, rest, large)


def _tensor(y: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(y).reshape(y.shape)).to(dtype)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    dtype = gate.dtype
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    with np.errstate(all="ignore"):
        g = _array(gate)
        return _tensor(g * _sigmoid(g)[0] * _array(up), dtype)


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    dtype, fused = gate.dtype, up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    with np.errstate(all="ignore"):
        g, way = _array(gate), _array(grad)
        sigmoid, rest = _sigmoid(g)
        of_gate = sigmoid * (1 + g * rest) * _array(up) * way
        of_up = g * sigmoid * way
    if fused:
        return _tensor(np.concatenate((of_gate, of_up), -1), dtype), grad.new_empty(0)
    return _tensor(of_gate, dtype), _tensor(of_up, dtype)
