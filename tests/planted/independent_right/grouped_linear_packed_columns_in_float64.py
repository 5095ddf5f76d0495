"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.packed_weight.call import quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
UNUSUAL = (
    "Right, but unusual: rows of one expert after the other from the last, float64, the "
    "epilogue as one affine map."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    experts, rows, _ = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    bounds = check_bounds(call.offsets, len(x))
    y = torch.empty((len(x), rows), dtype=call.out_dtype, device=x.device)
    for expert in reversed(range(experts)):
        some = slice(bounds[expert], bounds[expert + 1])
        if some.start == some.stop:
            continue
        product = _weight(call.weight, expert) @ x[some].float().double().T
        ones = torch.ones(some.stop - some.start, dtype=torch.float64, device=x.device)
        by_row = ones if x_scale is None else x_scale[some].double()
        after = ones if call.row_weight is None else call.row_weight[some].double()
        product = product * by_row
        if call.bias is not None:
            product = product + call.bias[expert].double()[:, None]
        y[some] = (product * after).T.to(call.out_dtype)
    return y


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """As op's grouped_linear_packed_input_gradient."""
    experts, _, columns = weight.shape
    bounds = check_bounds(offsets, len(grad))
    total = torch.empty((len(grad), columns), dtype=dtype, device=grad.device)
    for expert in range(experts):
        some = slice(bounds[expert], bounds[expert + 1])
        way = grad[some].double()
        if row_weight is not None:
            way = way * row_weight[some].double()[:, None]
        total[some] = (way @ _weight(weight, expert)).to(dtype)
    return total


def _weight(weight: ExpertWeights, expert: int) -> Tensor:
    """float64 W of one expert."""
    return decode_blocks(weight.expert(expert), slice(None))[: weight.shape[1]].double()
