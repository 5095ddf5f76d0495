"""linear_packed in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = "The transposed product W x^T in pieces of 256 columns, whose sums are added as a tree."

_ROWS, _PIECE = 512, 256


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(x.shape[:-1].numel(), columns).float().T.contiguous()
    y = torch.empty((flat.shape[1], rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        weight = decode_blocks(call.weight, block)[: last - first]
        parts = [
            weight[:, at : at + _PIECE] @ flat[at : at + _PIECE] for at in range(0, columns, _PIECE)
        ]
        y[:, first:last] = _tree(parts, (last - first, flat.shape[1]), flat).T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).float()
    parts = [
        flat[:, first:last] @ decode_blocks(weight, block)[: last - first]
        for block, first, last in _chunks(rows)
    ]
    total = _tree(parts, (len(flat), columns), flat)
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _tree(parts: list[Tensor], shape: tuple[int, int], like: Tensor) -> Tensor:
    if not parts:
        return like.new_zeros(shape)
    while len(parts) > 1:
        pairs = [parts[at] + parts[at + 1] for at in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0]


def _chunks(rows: int) -> list[tuple[slice, int, int]]:
    """(blocks of 16 rows, first row, last row) of each piece of W."""
    return [
        (slice(first // 16, (first + _ROWS) // 16), first, min(first + _ROWS, rows))
        for first in range(0, rows, _ROWS)
    ]
