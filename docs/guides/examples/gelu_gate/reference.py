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
    z = _exponent(g)
    sensitivity = 1 + z.abs() * torch.sigmoid(-z)
    return (g * up.double()).abs() * (torch.sigmoid(z) * sensitivity + _UNDERFLOW)


def gradient_magnitude(directions: list[Tensor], gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    """The size of both terms of d y / d gate: s and g s (1 - s) dz/dg cancel near g = -0.75."""
    d, g = directions[0].double().abs(), gate.double()
    s = torch.sigmoid(_exponent(g))
    slope = 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * g**2)
    terms = s + (g * s * (1 - s) * slope).abs()
    return {"gate": d * up.double().abs() * terms, "up": d * (g * s).abs()}


def _exponent(g: Tensor) -> Tensor:
    """z with (1 + tanh(z / 2)) / 2 = sigmoid(z): 1 + tanh cancels for negative g, sigmoid not."""
    return 2 * sqrt(2 / pi) * (g + 0.044715 * g**3)
