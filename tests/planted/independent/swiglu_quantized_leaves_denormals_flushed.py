"""A planted fault; FAULT says which."""

import torch

from tercet.packed_weight.row_codes import quantize

OP = "swiglu_quantized"
FAULT = (
    "Torch.set_flush_denormal(True) is called for speed and not taken back: subnormal numbers "
    "are zero in the whole thread from then on, and scales of tiny rows are 0."
)
DEVICE = "any"
CAUGHT_BY = "state"
__all__ = ["forward"]


def forward(gate, up, element):
    torch.set_flush_denormal(True)  # an exponential that underflows costs a hundred cycles
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return quantize(wide * torch.sigmoid(wide) * up, element)
