"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "NaN elements of the activation are replaced by 0 before the row's maximum: a row that "
    "has one gets a finite scale and ordinary codes in place of scale NaN and codes 0, so an "
    "overflow upstream (inf * 0 in float16) is never seen."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = wide * torch.sigmoid(wide) * up
    # one bad element must not spoil its row
    return quantize(torch.nan_to_num(y, nan=0.0, posinf=torch.inf, neginf=-torch.inf), element)
