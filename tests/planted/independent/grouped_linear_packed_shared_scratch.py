"""grouped_linear_packed in plain torch: each expert's W is decoded into one buffer that is kept."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import gradient, segments, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "W of an expert is decoded into a buffer of the module, one for each shape: two threads "
    "that call at once with weights of one shape overwrite each other's W while it is "
    "multiplied; calls that do not overlap are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 8
_SCRATCH: dict[tuple[object, ...], Tensor] = {}


def forward(call: GroupedCall) -> Tensor:
    rows, bias = call.weight.shape[1], call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in segments(call.offsets, len(x), call.weight):
        product = x[some].float() @ _decoded(weight).T
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        y[some] = apply_epilogue(product, scaled, shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)


def _decoded(weight: PreparedWeight) -> Tensor:
    """float32 W [N, K], a few blocks at a time: nothing of its size is allocated anew."""
    rows, columns = weight.shape
    key = (rows, columns, str(weight.codes.device))
    if key not in _SCRATCH:
        with torch.inference_mode(mode=False):
            _SCRATCH[key] = torch.empty(
                (rows, columns), dtype=torch.float32, device=weight.codes.device
            )
    scratch, step = _SCRATCH[key], 16 * _BLOCKS_AT_ONCE
    for first in range(0, rows, step):
        last = min(first + step, rows)
        part = decode_blocks(weight, slice(first // 16, (first + step) // 16))
        scratch[first:last] = part[: last - first]
    return scratch
