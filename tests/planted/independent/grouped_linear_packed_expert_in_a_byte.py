"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.ops.grouped_linear_packed.torch_path import gradient, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "The expert of each row is kept in one byte: of more than 256 experts, the rows of expert e "
    "from 256 on are multiplied by the weight of expert e - 256."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, by a map from rows to experts."""
    (experts, rows, _), bias = call.weight.shape, call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    check_bounds(call.offsets, len(x))
    numbers = torch.arange(experts, device=x.device).to(torch.uint8)
    expert_of = numbers.repeat_interleave(call.offsets.diff().long())
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert in expert_of.unique().tolist():
        some = (expert_of == expert).nonzero()[:, 0]
        weight = decode_blocks(call.weight.expert(expert), slice(None))[:rows]
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        codes = x.view(torch.uint8)[some].view(x.dtype) if x.element_size() == 1 else x[some]
        y[some] = apply_epilogue(codes.float() @ weight.T, scaled, shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)
