"""A planted fault; FAULT says which."""

import torch

from tercet.packed_weight.row_codes import quantize

OP = "swiglu_quantized"
FAULT = "Scale and row_sum are [M], not [..]: another shape where gate has three axes or one."
DEVICE = "any"
CAUGHT_BY = "opcheck"
__all__ = ["forward"]


def forward(gate, up, element):
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    shape = gate.shape
    rows = (shape[:-1].numel(), shape[-1])
    wide = gate.reshape(rows).float()
    codes, scale, row_sum = quantize(wide * torch.sigmoid(wide) * up.reshape(rows), element)
    return codes.reshape(shape), scale, row_sum
