"""grouped_linear_packed in plain torch, with a fault; written blind.

An expert's rows are multiplied 256 at a time, so that the product stays in the cache; the scales of
codes are those of the expert's first rows for each of these pieces. A user hits it in prefill with
8-bit activations, once an expert has more than 256 rows.
"""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import gradient, segments, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "With 8-bit activations an expert's rows from its 257th on get the scales of its first ones."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]

_ROWS = 256


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    rows, bias = call.weight.shape[1], call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in segments(call.offsets, len(x), call.weight):
        decoded = decode_blocks(weight, slice(None))[:rows].T
        mine, scales = x[some], None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        for first in range(0, len(mine), _ROWS):
            piece = mine[first : first + _ROWS].float()
            scaled = None if scales is None else scales[: len(piece)]
            at = slice(some.start + first, some.start + first + len(piece))
            y[at] = apply_epilogue(piece @ decoded, scaled, shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)
