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


def _exponent(g: Tensor) -> Tensor:
    """z with (1 + tanh(z / 2)) / 2 = sigmoid(z): 1 + tanh cancels for negative g, sigmoid not."""
    return 2 * sqrt(2 / pi) * (g + 0.044715 * g**3)
