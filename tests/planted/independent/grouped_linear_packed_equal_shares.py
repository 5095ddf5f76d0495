"""grouped_linear_packed in torch: equal shares as one batched product, else one by one."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.ops.grouped_linear_packed.torch_path import gradient, segments, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "Whether all experts have equally many rows is seen by the first one's share alone: where "
    "it has T / E rows and others have more and fewer, rows get the weight and the bias of a "
    "wrong expert; truly equal shares, and a first share that differs, are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    (experts, rows, columns), bias = call.weight.shape, call.bias
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    share = check_bounds(call.offsets, len(x))[1]
    if share and share * experts == len(x):
        decoded = [decode_blocks(call.weight.expert(e), slice(None))[:rows] for e in range(experts)]
        wide = x.float().reshape(experts, share, columns)
        y = torch.bmm(wide, torch.stack(decoded).transpose(1, 2))
        if x_scale is not None:
            y *= x_scale.reshape(experts, share, 1)
        if bias is not None:
            y += bias.float()[:, None]
        return weighted(y.reshape(len(x), rows), call.row_weight).to(call.out_dtype)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, some, weight in segments(call.offsets, len(x), call.weight):
        product = x[some].float() @ decode_blocks(weight, slice(None))[:rows].T
        scaled = None if x_scale is None else x_scale[some]
        shared = None if bias is None else bias[expert]
        y[some] = apply_epilogue(product, scaled, shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)
