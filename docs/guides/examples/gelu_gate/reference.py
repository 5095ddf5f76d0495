"""The meaning of gelu_gate, in float64.

GELU by its tanh formula (Hendrycks and Gimpel 2016, arXiv:1606.08415), as the gate of an MLP
(GeGLU: Shazeer 2020, arXiv:2002.05202).
"""

from math import pi, sqrt

import torch
from torch import Tensor

_UNDERFLOW = 1e-30


def reference(gate: Tensor, up: Tensor) -> Tensor:
    """y [.., N] = gelu(gate) * up."""
    g = gate.double()
    return g * torch.sigmoid(_exponent(g)) * up.double()


def magnitude(gate: Tensor, up: Tensor) -> Tensor:
    """|y|, more where the exponent is large: its rounding error is a relative error of y.

    Where float32's exp underflows, y is 0 and off by all of itself: less than _UNDERFLOW times what
    is multiplied.
    """
    g = gate.double()
    return (g * up.double()).abs() * _size(_exponent(g))


def gradient_magnitude(directions: list[Tensor], gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    """The size of both terms of d y / d gate: s and g s (1 - s) dz/dg cancel near g = -0.75."""
    d, g = directions[0].double().abs(), gate.double()
    z = _exponent(g)
    slope = 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * g**2)
    terms = _size(z) * (1 + (g * torch.sigmoid(-z) * slope).abs())
    return {"gate": d * up.double().abs() * terms, "up": d * g.abs() * _size(z)}


def _size(z: Tensor) -> Tensor:
    """sigmoid(z), more where z is large: its rounding is a relative error of the exponential."""
    return torch.sigmoid(z) * (1 + z.abs() * torch.sigmoid(-z)) + _UNDERFLOW


def _exponent(g: Tensor) -> Tensor:
    """z with (1 + tanh(z / 2)) / 2 = sigmoid(z): 1 + tanh cancels for negative g, sigmoid not."""
    return 2 * sqrt(2 / pi) * (g + 0.044715 * g**3)
