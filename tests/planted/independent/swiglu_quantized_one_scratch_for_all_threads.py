"""A planted fault; FAULT says which."""

import time

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "swiglu_quantized"
FAULT = "The product lies in one buffer of the module: a call from another thread overwrites it."
CAUGHT_BY = "context"
DEVICE = "any"

_scratch: dict[object, Tensor] = {}


def forward(gate: Tensor, up: Tensor | None, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    key = (gate.shape, gate.device)
    if key not in _scratch:
        _scratch.clear()
        _scratch[key] = torch.empty(gate.shape, dtype=torch.float32, device=gate.device)
    product, wide = _scratch[key], gate.float()
    torch.mul(wide * torch.sigmoid(wide), up.float(), out=product)
    time.sleep(0.002)  # where a kernel's second launch would be waited for
    return quantize(product, element)
