"""swiglu_quantized in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
UNUSUAL = (
    "gate / (1 + exp(-gate)) in float64, the last 50 columns first, each piece written into a "
    "float32 row that lies transposed in memory."
)
DEVICE = "any"

_COLUMNS = 50


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        n = gate.shape[-1] // 2
        gate, up = gate[..., :n], gate[..., n:]
    n = gate.shape[-1]
    y = torch.empty((n, *gate.shape[:-1]), dtype=torch.float32, device=gate.device).movedim(0, -1)
    for first in reversed(range(0, n, _COLUMNS)):
        some = slice(first, first + _COLUMNS)
        wide = gate[..., some].double()
        y[..., some] = (wide / (1 + (-wide).exp()) * up[..., some].double()).float()
    return quantize(y, element)
