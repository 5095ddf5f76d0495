"""swiglu_quantized in plain torch, on any device, in float32."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    return quantize(wide * torch.sigmoid(wide) * up, element)
