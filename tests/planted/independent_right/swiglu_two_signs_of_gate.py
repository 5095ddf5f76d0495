"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "swiglu"
UNUSUAL = (
    "The sigmoid is exp(-|g|) over 1 + exp(-|g|), or 1 over it; outputs are written through "
    "out= into views of one new tensor."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _sigmoid(g):
    small = torch.exp(-g.abs())
    return torch.where(g >= 0, 1.0, small) / (1.0 + small)


def _halves(gate, up):
    n = gate.shape[-1] // 2
    return (gate, up) if up is not None else (gate.narrow(-1, 0, n), gate.narrow(-1, n, n))


def forward(gate, up):
    gate, up = _halves(gate, up)
    g = gate.double()
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    y.copy_(torch.where(g == -torch.inf, torch.nan, g * _sigmoid(g)) * up.double())
    return y


def gradient(grad, gate, up):
    result = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    other = torch.empty(
        gate.shape if up is not None else (0,), dtype=gate.dtype, device=gate.device
    )
    first, second = _halves(result, other if up is not None else None)
    one, two = _halves(gate, up)
    g, d = one.double(), grad.double()
    s = _sigmoid(g)
    first.copy_(d * two.double() * (s + g * s * _sigmoid(-g)))
    second.copy_(d * (g * s))
    return result, other
