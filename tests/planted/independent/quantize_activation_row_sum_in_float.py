"""quantize_activation in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "The sum of a row's int8 codes is taken in float32 and converted to int32. Shows where "
    "the sum passes 2^24: rows of more than 132104 elements that are nearly all alike."
)
CAUGHT_BY = "forward"


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    codes, scale, row_sum = quantize(x, element)
    if element == "int8":
        row_sum = codes.float().sum(-1).to(torch.int32)
    return codes, scale, row_sum
