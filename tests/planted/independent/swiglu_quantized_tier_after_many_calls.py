"""A planted fault; FAULT says which."""

from collections import Counter

import torch
from torch import Tensor

from tercet.ops.swiglu_quantized import torch_path
from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "After 300 calls of one shape a second tier takes over, which forms silu(gate) * up in gate's "
    "dtype and so rounds 16-bit inputs twice more: a long-running process gets other codes."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward"]

_HOT = 300
_calls: Counter[tuple[object, ...]] = Counter()


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized; shapes that come often are worth a shorter way."""
    key = (gate.shape, gate.dtype, up is None)
    _calls[key] += 1
    if _calls[key] <= _HOT:
        return torch_path.forward(gate, up, element)
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    return quantize(torch.nn.functional.silu(gate) * up, element)
