"""A planted fault; FAULT says which."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "Offsets are read once for each (address, version, count of rows), which spares gate, up, "
    "down and their gradients a wait: the offsets of the next layer or step, when the "
    "allocator gives them the memory of earlier ones, are taken for those."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_bounds: dict[tuple[int, int, int, int], list[int]] = {}


def forward(call: GroupedCall) -> Tensor:
    rows, bias = call.weight.shape[1], call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in _segments(call.offsets, len(x), call.weight):
        product = x[some].float() @ decode_blocks(weight, slice(None))[:rows].T
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        y[some] = apply_epilogue(product, scaled, shared, None, torch.float32)
    return _weighted(y, call.row_weight).to(call.out_dtype)


def _segments(
    offsets: Tensor, count: int, weight: ExpertWeights
) -> Iterator[tuple[int, slice, PreparedWeight]]:
    for expert, (first, last) in enumerate(pairwise(_read(offsets, count))):
        if first < last:
            yield expert, slice(first, last), weight.expert(expert)


def _read(offsets: Tensor, count: int) -> list[int]:
    version = 0 if offsets.is_inference() else offsets._version
    key = (offsets.data_ptr(), version, offsets.numel(), count)
    found = _bounds.get(key)
    if found is None:
        if len(_bounds) > 64:
            _bounds.clear()
        found = _bounds[key] = check_bounds(offsets, count)
    return found


def _weighted(y: Tensor, row_weight: Tensor | None) -> Tensor:
    return y if row_weight is None else y.mul_(row_weight[:, None])


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    _, rows, columns = weight.shape
    total = torch.empty((len(grad), columns), dtype=torch.float32, device=grad.device)
    for _, some, one in _segments(offsets, len(grad), weight):
        total[some] = grad[some].float() @ decode_blocks(one, slice(None))[:rows]
    return _weighted(total, row_weight).to(dtype)
