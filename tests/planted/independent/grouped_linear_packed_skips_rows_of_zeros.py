"""grouped_linear_packed in plain torch, with a fault; written blind.

Rows whose codes are all 0 are padding, it was thought, and need no product: they get the bias. But
a row that has NaN or inf in it also has codes of 0, and only its scale says so: its result should
be NaN. A user hits it with 8-bit activations when one token's activations overflow: the token goes
on as if nothing had been.
"""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed import torch_path
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import gradient, segments, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "A row of x whose codes are all 0 gets the bias without a product, also where its scale is NaN "
    "or inf, as a row's with NaN or inf is."
)
CAUGHT_BY = "values"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    if x_scale is None:
        return torch_path.forward(call)
    rows, bias = call.weight.shape[1], call.bias
    y = torch.zeros((len(x), rows), dtype=torch.float32, device=x.device)
    wide = x.float()
    alive = wide.any(-1)
    for expert, some, weight in segments(call.offsets, len(x), call.weight):
        if bias is not None:
            y[some] = bias[expert].float()
        live = alive[some].nonzero()[:, 0] + some.start
        if not len(live):
            continue
        product = wide[live] @ decode_blocks(weight, slice(None))[:rows].T
        shared = None if bias is None else bias[expert]
        y[live] = apply_epilogue(product, x_scale[live], shared, None, torch.float32)
    return weighted(y, call.row_weight).to(call.out_dtype)
