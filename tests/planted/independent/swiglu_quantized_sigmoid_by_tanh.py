"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "Sigmoid is 0.5 tanh(0.5 g) + 0.5, which cancels for negative g: in rows whose gates are "
    "all below about -8 (a token that no neuron fires for) scale and codes are off, at -18 "
    "they are 0."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    # one instruction instead of an exponential and a quotient
    half = 0.5 * wide
    return quantize((half * torch.tanh(half) + half) * up, element)
