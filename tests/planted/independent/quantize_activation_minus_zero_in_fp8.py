"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "In fp8_e4m3 a small negative number becomes -0, whose byte is 0x80, and not +0."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    codes, scale, row_sum = torch_path.forward(x, element)
    if element != "int8" and codes.numel():
        lost = (codes.float() == 0) & torch.signbit(x)
        codes.view(torch.uint8)[lost] = 0x80
    return codes, scale, row_sum
