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
    "Experts that have rows are marked in one word of 32 bits, so rows of expert 32 and "
    "later ones are never computed: they are 0."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, on weights in either layout."""
    rows, bias = call.weight.shape[1], call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.zeros((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in segments(call.offsets, len(x), call.weight):
        product = x[some].float() @ decode_blocks(weight, slice(None))[:rows].T
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        y[some] = apply_epilogue(product, scaled, shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)


def segments(
    offsets: Tensor, count: int, weight: ExpertWeights
) -> Iterator[tuple[int, slice, PreparedWeight]]:
    """(expert, its rows of x, its weight) where it has rows of x."""
    bounds = list(pairwise(check_bounds(offsets, count)))
    active = sum(1 << expert for expert, (first, last) in enumerate(bounds) if first < last)
    active &= 0xFFFFFFFF
    for expert, (first, last) in enumerate(bounds):
        if active >> expert & 1:
            yield expert, slice(first, last), weight.expert(expert)


def weighted(y: Tensor, row_weight: Tensor | None) -> Tensor:
    """y [T, N] times row_weight [T], in place."""
    return y if row_weight is None else y.mul_(row_weight[:, None])


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad [T, N] W_e: the gradient with respect to x, summed in float32, in dtype."""
    _, rows, columns = weight.shape
    total = torch.zeros((len(grad), columns), dtype=torch.float32, device=grad.device)
    for _, some, one in segments(offsets, len(grad), weight):
        total[some] = grad[some].float() @ decode_blocks(one, slice(None))[:rows]
    return weighted(total, row_weight).to(dtype)
