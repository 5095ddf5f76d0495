"""linear_packed in plain torch: sums over pieces of columns, the last first, in float64."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = (
    "W is decoded 48 rows at a time; each product is a sum over pieces of 96 columns in "
    "float64, the last piece first, and scale, bias and residual join in float64 before the "
    "one rounding."
)
DEVICE = "any"


_BLOCKS, _COLUMNS = 3, 96


def forward(call: PackedCall) -> Tensor:
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.float().reshape(x.shape[:-1].numel(), columns).double()
    y = torch.zeros((len(flat), rows), dtype=torch.float64, device=x.device)
    for first in range(0, rows, 16 * _BLOCKS):
        decoded = _decoded(call.weight, first)
        for start in reversed(range(0, columns, _COLUMNS)):
            part = slice(start, start + _COLUMNS)
            y[:, first : first + len(decoded)] += flat[:, part] @ decoded[:, part].T
    y = y.view(*x.shape[:-1], rows)
    if x_scale is not None:
        y = y * x_scale.double()[..., None]
    for term in (call.bias, call.residual):
        if term is not None:
            y = y + term.double()
    return y.to(call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).double()
    total = torch.zeros((len(flat), columns), dtype=torch.float64, device=grad.device)
    for first in reversed(range(0, rows, 16 * _BLOCKS)):
        decoded = _decoded(weight, first)
        total += flat[:, first : first + len(decoded)] @ decoded
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _decoded(weight: PreparedWeight, first: int) -> Tensor:
    """float64 W of up to 48 rows."""
    count = min(16 * _BLOCKS, weight.shape[0] - first)
    blocks = slice(first // 16, first // 16 + _BLOCKS)
    return decode_blocks(weight, blocks)[:count].double()
