"""A right kernel that is unusual; FAULT says how."""

from random import Random

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.ops.grouped_linear_packed.torch_path import gradient
from tercet.packed_weight.call import quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "None: experts in an order that a generator of its own draws, products transposed, in float64; "
    "each row is rounded once."
)
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    experts, rows, _ = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    bounds = check_bounds(call.offsets, len(x))
    y = torch.empty((len(x), rows), dtype=call.out_dtype, device=x.device)
    for expert in Random(experts).sample(range(experts), experts):
        first, last = bounds[expert], bounds[expert + 1]
        if first == last:
            continue
        w = decode_blocks(call.weight.expert(expert), slice(None))[:rows].double()
        product = (w @ x[first:last].float().double().T).T
        if x_scale is not None:
            product = product * x_scale[first:last, None].double()
        if call.bias is not None:
            product = product + call.bias[expert].double()
        if call.row_weight is not None:
            product = product * call.row_weight[first:last, None].double()
        y[first:last] = product.to(call.out_dtype)
    return y
