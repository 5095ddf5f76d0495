"""The meaning of swiglu, in float64 (Shazeer 2020, arXiv:2002.05202)."""

import torch
from torch import Tensor

# a sigmoid below the smallest normal float32 may be flushed to zero; over the tolerance of float32
_FLUSHED = 2.0**-126 * 2.0**18


def reference(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """y [.., N] = gate * sigmoid(gate) * up; gate [.., 2N] holds both halves where up is None."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    gate = gate.double()
    return gate * torch.sigmoid(gate) * up.double()


def magnitude(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """|y|, more where gate is far below zero: exp(-gate) is off by |gate| times the rounding."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    gate = gate.double()
    grown = 1 + (-gate).clamp(0, 128) / 32
    return reference(gate, up).abs() * grown + (gate * up.double()).abs() * _FLUSHED


def gradient_magnitude(
    directions: list[Tensor], gate: Tensor, up: Tensor | None = None
) -> dict[str, Tensor]:
    """The size of both terms of d y / d gate: s and g s (1 - s) cancel near g = -1.28."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    d, g = directions[0].double().abs(), gate.double()
    s = torch.sigmoid(g)
    of_gate = d * up.double().abs() * s * (1 + (g * (1 - s)).abs())
    of_up = d * (g * s).abs()
    return {"gate": torch.cat((of_gate, of_up), -1)} if fused else {"gate": of_gate, "up": of_up}
