"""swiglu_quantized in plain torch, with a fault; written blind.

A row of up to 8192 columns is held in float32 between its largest element and its codes; a longer
one is put aside in gate's dtype, and read again. y is then rounded to 8 or 11 bits, which the op
says it never is, and in float16 it may be inf. A user hits it with models whose intermediate size
is above 8192 (14336 of an 8B one): scales are off by 2^-9, codes by one.
"""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "Rows of more than 8192 columns are rounded to gate's dtype between the product and its codes."
)
CAUGHT_BY = "forward"
DEVICE = "any"

_HELD = 8192


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = wide * torch.sigmoid(wide) * up
    if y.shape[-1] > _HELD:
        y = y.to(gate.dtype)
    return quantize(y, element)
