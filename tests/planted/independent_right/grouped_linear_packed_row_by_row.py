"""A right kernel; UNUSUAL says how it is unusual."""

from bisect import bisect_right

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.packed_weight.call import quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
UNUSUAL = (
    "Goes through the rows of x from the last to the first, each with its own decoded expert "
    "found by a search in the offsets, in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


class _Decoded:
    """The W of one expert at a time, float64; lives as long as a call."""

    def __init__(self, weight: ExpertWeights) -> None:
        self.weight, self.held, self.matrix = weight, -1, torch.empty(0)

    def of(self, expert: int) -> Tensor:
        if expert != self.held:
            one = self.weight.expert(expert)
            self.matrix = decode_blocks(one, slice(None))[: self.weight.shape[1]].double()
            self.held = expert
        return self.matrix


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    bounds, decoded = check_bounds(call.offsets, len(x)), _Decoded(call.weight)
    y = torch.empty((len(x), call.weight.shape[1]), dtype=call.out_dtype, device=x.device)
    for row in range(len(x) - 1, -1, -1):
        expert = bisect_right(bounds, row) - 1
        product = (decoded.of(expert) * x[row].float().double()).sum(1)
        if x_scale is not None:
            product = product * x_scale[row].double()
        if call.bias is not None:
            product = product + call.bias[expert].double()
        if call.row_weight is not None:
            product = product * call.row_weight[row].double()
        y[row] = product.float().to(call.out_dtype)
    return y


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad W_e, row by row in float64."""
    bounds, decoded = check_bounds(offsets, len(grad)), _Decoded(weight)
    out = torch.empty((len(grad), weight.shape[2]), dtype=dtype, device=grad.device)
    for row in range(len(grad)):
        product = grad[row].double() @ decoded.of(bisect_right(bounds, row) - 1)
        if row_weight is not None:
            product = product * row_weight[row].double()
        out[row] = product.float().to(dtype)
    return out
