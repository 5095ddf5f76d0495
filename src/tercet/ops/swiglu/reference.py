"""The meaning of swiglu, in float64 (Shazeer 2020, arXiv:2002.05202)."""

import torch
from torch import Tensor

# a sigmoid below the smallest normal float32 may be flushed to zero: times an infinity that is NaN
_SMALLEST = 2.0**-126
# over the tolerance of float32
_FLUSHED = _SMALLEST * 2.0**18


def reference(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """y [.., N] = gate * sigmoid(gate) * up; gate [.., 2N] holds both halves where up is None."""
    g, u = _double(gate, up)
    return g * torch.sigmoid(g) * u


def magnitude(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """|y|, more where gate is far below zero: exp(-gate) is off by |gate| times the rounding."""
    g, u = _double(gate, up)
    grown = 1 + (-g).clamp(0, 128) / 32
    size = reference(g, u).abs() * grown + (g * u).abs() * _FLUSHED
    return torch.where((torch.sigmoid(g) < _SMALLEST) & u.isinf(), torch.nan, size)


def gradient_magnitude(
    directions: list[Tensor], gate: Tensor, up: Tensor | None = None
) -> dict[str, Tensor]:
    """The size of both terms of d y / d gate: s and g s (1 - s) cancel near g = -1.28.

    More where gate is far below zero, as in `magnitude`.
    """
    (g, u), d = _double(gate, up), directions[0].double().abs()
    s = torch.sigmoid(g)
    s_off = s * (1 + (-g).clamp(0, 128) / 32) + _FLUSHED
    of_gate = d * u.abs() * s_off * (1 + (g * (1 - s)).abs())
    of_up = d * g.abs() * s_off
    if up is None:
        return {"gate": torch.cat((of_gate, of_up), -1)}
    return {"gate": of_gate, "up": of_up}


def _double(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """gate and up, the halves of gate where up is None."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    return gate.double(), up.double()
