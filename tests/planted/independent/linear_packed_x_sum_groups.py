"""linear_packed in plain torch; given sums of codes take the zero points out of the product."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "With x_sum the first group's zero points and scales correct the whole row: codes with "
    "x_sum and a weight with zero points in several groups along K."
)
CAUGHT_BY = "forward"
DEVICE = "any"


_BLOCKS_AT_ONCE = 64


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    weight, shift = call.weight, None
    if call.x_sum is not None and call.x_scale is not None and weight.zero is not None and columns:
        # sum of (level - zero) scale x = sum of level scale x - zero scale sum of x
        shift = (weight.zero.float() * weight.scale.float())[:, 0].reshape(-1)[:rows]
        weight = replace(weight, zero=None)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(weight, block)[: last - first].T
    if shift is not None:
        y -= call.x_sum.reshape(-1, 1).float() * shift
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    rows, columns = weight.shape
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)
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
