"""A planted fault; FAULT says which."""

import time

import torch
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "In three of every thousand microseconds of the clock one code is off by one."
CAUGHT_BY = "determinism"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    codes, scale, row_sum = torch_path.forward(x, element)
    if element == "int8" and codes.numel() and time.time_ns() // 1000 % 1000 < 3:
        first = codes.view(-1)[:1]
        first += torch.where(first < 0, 1, -1).to(torch.int8)
    return codes, scale, row_sum
