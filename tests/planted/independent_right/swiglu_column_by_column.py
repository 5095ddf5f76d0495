"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "swiglu"
UNUSUAL = (
    "Right, but unusual: it works on the transposed matrix, a run of seven columns at a time, "
    "with the sigmoid as the exponential of minus a softplus in float64."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]

_COLUMNS = 7


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    for first in range(0, gate.shape[-1], _COLUMNS):
        some = slice(first, first + _COLUMNS)
        g, u = (x[..., some].movedim(-1, 0).double() for x in (gate, up))
        y[..., some] = (g * _sigmoid(g) * u).movedim(0, -1).to(gate.dtype)
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    first, second = gate.tensor_split(2, -1) if up is None else (gate, up)
    g, u, way = first.double(), second.double(), grad.double()
    s = _sigmoid(g)
    # 1 - sigmoid is the other side's sigmoid
    of_gate = (way * u * s * (1 + g * _sigmoid(-g))).to(gate.dtype).contiguous()
    of_up = (way * g * s).to(gate.dtype).contiguous()
    return (torch.cat((of_gate, of_up), -1), gate.new_empty(0)) if fused else (of_gate, of_up)


def _sigmoid(x: Tensor) -> Tensor:
    return (-torch.logaddexp(torch.zeros_like(x), -x)).exp()
