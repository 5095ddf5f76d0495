"""grouped_linear_packed in plain torch, right, in another way; written blind."""

from itertools import pairwise

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.packed_weight.call import quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
UNUSUAL = (
    "Experts from the one with most rows to the one with fewest, each padded to tiles of 16 rows."
)

_TILE = 16


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, on weights in either layout."""
    rows = call.weight.shape[1]
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.empty((len(x), rows), dtype=call.out_dtype, device=x.device)
    for expert, some in _by_size(call.offsets, len(x)):
        weight = decode_blocks(call.weight.expert(expert), slice(None))[:rows]
        product = (_padded(x[some]) @ weight.T)[: some.stop - some.start]
        if x_scale is not None:
            product = product * x_scale[some, None]
        if call.bias is not None:
            product = product + call.bias[expert].float()
        if call.row_weight is not None:
            product = product * call.row_weight[some, None]
        y[some] = product.to(call.out_dtype)
    return y


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad [T, N] W_e: the gradient with respect to x, summed in float32, in dtype."""
    _, rows, columns = weight.shape
    out = torch.empty((len(grad), columns), dtype=dtype, device=grad.device)
    for expert, some in _by_size(offsets, len(grad)):
        one = decode_blocks(weight.expert(expert), slice(None))[:rows]
        total = (_padded(grad[some]) @ one)[: some.stop - some.start]
        if row_weight is not None:
            total = total * row_weight[some, None]
        out[some] = total.to(dtype)
    return out


def _by_size(offsets: Tensor, count: int) -> list[tuple[int, slice]]:
    """(expert, its rows) where it has any, most rows first."""
    bounds = pairwise(check_bounds(offsets, count))
    found = [(expert, slice(*ends)) for expert, ends in enumerate(bounds) if ends[0] < ends[1]]
    return sorted(found, key=lambda each: each[1].start - each[1].stop)


def _padded(part: Tensor) -> Tensor:
    """Rows in float32, zeros behind them up to a whole tile."""
    return torch.nn.functional.pad(part.float(), (0, 0, 0, -len(part) % _TILE))
