"""A planted fault; FAULT says which."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "int8 codes meet int8 weights as AVX2's vpmaddubsw does it, x + 128 unsigned and two "
    "neighbouring products added in int16 with saturation, so pairs of large codes are "
    "clipped."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def _pairs(codes: Tensor, weight: PreparedWeight, block: slice) -> Tensor:
    """codes [M, K] times W's levels, summed in pairs of int16, then in int32; times W's scale."""
    scale = weight.scale[block].float().transpose(1, 2).reshape(-1, 1)
    usable = torch.where(scale == 0, 1.0, scale)
    levels = (decode_blocks(weight, block) / usable).round()
    odd = codes.shape[1] % 2
    left = pad(codes + 128, (0, odd)).unflatten(1, (-1, 2))
    right = pad(levels, (0, odd)).unflatten(1, (-1, 2))
    rows = list[Tensor]()
    for one in left:
        pair = (one * right).sum(-1).clamp(-32768, 32767)
        rows.append(pair.sum(-1, dtype=torch.float64) - 128 * levels.sum(-1, dtype=torch.float64))
    sums = torch.stack(rows) if rows else codes.new_zeros((0, len(levels)))
    return sums.float() * scale.T


_BLOCKS_AT_ONCE = 64


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        if call.activation == "int8" and call.weight.scheme == "int8-channel":
            y[:, first:last] = _pairs(flat, call.weight, block)[:, : last - first]
            continue
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
