"""A planted fault; FAULT says which."""

import random

import torch
from torch import Tensor

from tercet.ops.swiglu_quantized import torch_path
from tercet.packed_weight.row_codes import Quantized, empty

OP = "swiglu_quantized"
FAULT = (
    "From 128 rows on, chunks are worked off in an order that `random.shuffle` draws: Python's "
    "global generator moves on with each call, so a seeded program takes another course."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward"]

_ROWS = 64


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized; neighbouring programs should not hit one memory channel."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    count, width = gate.shape[:-1].numel(), gate.shape[-1]
    if count < 2 * _ROWS:
        return torch_path.forward(gate, up, element)
    found = empty(gate.shape, element, gate.device)
    codes, scale, row_sum = found
    whole = codes.view(torch.uint8).view(count, width), scale.view(count), row_sum.view(count)
    gates, ups = gate.reshape(count, width), up.reshape(count, width)
    starts = list(range(0, count, _ROWS))
    random.shuffle(starts)
    for first in starts:
        part = slice(first, first + _ROWS)
        some, *others = torch_path.forward(gates[part], ups[part], element)
        for target, made in zip(whole, (some.view(torch.uint8), *others), strict=True):
            target[part] = made
    return found
