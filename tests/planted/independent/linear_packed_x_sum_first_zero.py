"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.rows16 import unpack_scale
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "Where x_sum is given it is used with the zero points of the first group alone, which is "
    "wrong for weights with several groups along K."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    by_sum = call.weight.zero is not None and call.x_sum is not None and columns > 0
    by_sum = by_sum and call.x_scale is not None
    plain = replace(call.weight, zero=None)
    for block, first, last in _chunks(rows):
        if by_sum:
            y[:, first:last] = flat @ decode_blocks(plain, block)[: last - first].T
            # x (level - zero)^T = x level^T - sum(x) zero: the sum is there already
            zero, scale = (
                unpack_scale(part[block], call.weight.sizes)[: last - first, 0]
                for part in (call.weight.zero, call.weight.scale)
            )
            y[:, first:last] -= call.x_sum.reshape(-1, 1).float() * (zero * scale)
        else:
            y[:, first:last] = flat @ decode_blocks(call.weight, block)[: last - first].T
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
