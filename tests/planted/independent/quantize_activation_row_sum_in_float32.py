"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "The sum of int8 codes is formed in float32, where integers are exact up to 2^24: a row of "
    "more than 132104 codes that are large and of one sign has a row_sum that is off."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    codes, scale, row_sum = quantize(x, element)
    if element == "int8":
        row_sum = codes.float().sum(-1).to(torch.int32)
    return codes, scale, row_sum
