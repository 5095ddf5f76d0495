"""grouped_linear_packed in plain torch, with a fault; written blind."""

from itertools import pairwise

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall, check_bounds
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
FAULT = (
    "The backward of a single expert takes a short way that forgets the rows' weights. Shows "
    "in the gradient of x with one expert (E = 1) and row_weight given."
)
CAUGHT_BY = "forward"


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, on weights in either layout."""
    _, rows, _ = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for expert, (first, last) in enumerate(pairwise(check_bounds(call.offsets, len(x)))):
        some = slice(first, last)
        if first < last:
            weight = decode_blocks(call.weight.expert(expert), slice(None))[:rows]
            scaled = None if x_scale is None else x_scale[some]
            shared = None if call.bias is None else call.bias[expert]
            product = x[some].float() @ weight.T
            y[some] = apply_epilogue(product, scaled, shared, None, torch.float32)
    if call.row_weight is not None:
        y.mul_(call.row_weight[:, None])
    return y.to(call.out_dtype)


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """row_weight * grad [T, N] W_e: the gradient with respect to x, summed in float32, in dtype."""
    experts, rows, columns = weight.shape
    if experts == 1:
        # a dense layer
        return (grad.float() @ decode_blocks(weight.expert(0), slice(None))[:rows]).to(dtype)
    total = torch.empty((len(grad), columns), dtype=torch.float32, device=grad.device)
    for expert, (first, last) in enumerate(pairwise(check_bounds(offsets, len(grad)))):
        if first < last:
            one = decode_blocks(weight.expert(expert), slice(None))[:rows]
            total[first:last] = grad[first:last].float() @ one
    if row_weight is not None:
        total.mul_(row_weight[:, None])
    return total.to(dtype)
