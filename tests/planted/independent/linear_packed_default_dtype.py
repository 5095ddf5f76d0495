"""linear_packed in plain torch: any device, one block of rows of W in memory at a time."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "The sums are held in torch's default dtype, which is not named: under "
    "torch.set_default_dtype(torch.bfloat16 or float16), as frameworks set it while they "
    "build or run models, results and gradients are those of 16-bit sums; with the usual "
    "default they are right."
)
CAUGHT_BY = "context"
DEVICE = "any"


_BLOCKS_AT_ONCE = 64


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), device=x.device)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(call.weight, block)[: last - first].T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    rows, columns = weight.shape
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), device=grad.device)
    for block, first, last in _chunks(rows):
        total += flat[:, first:last] @ decode_blocks(weight, block)[: last - first]
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _chunks(rows: int) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    step = 16 * _BLOCKS_AT_ONCE
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
