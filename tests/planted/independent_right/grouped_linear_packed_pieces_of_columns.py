"""grouped_linear_packed in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import segments
from tercet.packed_weight.call import quantize_input
from tercet.packed_weight.expert_weights import ExpertWeights
from tercet.packed_weight.weight import decode_blocks

OP = "grouped_linear_packed"
UNUSUAL = (
    "The last expert first, and of each product the last 40 columns first, added up in float64 "
    "together with the bias; the gradient walks over pieces of 24 rows of W."
)
DEVICE = "any"

_COLUMNS, _ROWS = 40, 24


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed."""
    _, rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    y = torch.zeros((len(x), rows), dtype=torch.float64, device=x.device)
    for expert, some, weight in reversed(list(segments(call.offsets, len(x), call.weight))):
        decoded, mine = decode_blocks(weight, slice(None))[:rows].double(), x[some].float().double()
        for first in reversed(range(0, columns, _COLUMNS)):
            piece = slice(first, first + _COLUMNS)
            y[some] += torch.einsum("tk,nk->tn", mine[:, piece], decoded[:, piece])
        if x_scale is not None:
            y[some] *= x_scale[some, None].double()
        if call.bias is not None:
            y[some] += call.bias[expert].double()
    if call.row_weight is not None:
        y = y * call.row_weight.double()[:, None]
    return y.float().to(call.out_dtype)


def gradient(
    grad: Tensor,
    offsets: Tensor,
    weight: ExpertWeights,
    row_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """As op's gradient with respect to x."""
    _, rows, columns = weight.shape
    total = torch.zeros((len(grad), columns), dtype=torch.float64, device=grad.device)
    for _, some, one in reversed(list(segments(offsets, len(grad), weight))):
        decoded, mine = decode_blocks(one, slice(None))[:rows].double(), grad[some].double()
        for first in reversed(range(0, rows, _ROWS)):
            piece = slice(first, first + _ROWS)
            total[some] += mine[:, piece] @ decoded[piece]
    if row_weight is not None:
        total = total * row_weight.double()[:, None]
    return total.float().to(dtype)
