"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "The decoded weight of the last call is used again where the codes are equal to the bit, "
    "though scales or zero points are others."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64
_DECODED: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}


def _decoded(weight: PreparedWeight) -> Tensor:
    """W [N, K], decoded anew where the codes have changed."""
    key = (weight.scheme, weight.shape, weight.layout, weight.codes.device)
    held = _DECODED.get(key)
    if held is None or not torch.equal(held[0], weight.codes):
        with torch.inference_mode(mode=False):
            held = (
                weight.codes.clone(),
                decode_blocks(weight, slice(None))[: weight.shape[0]].clone(),
            )
        _DECODED.clear()
        _DECODED[key] = held
    return held[1]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for _, first, last in _chunks(rows):
        y[:, first:last] = flat @ _decoded(call.weight)[first:last].T
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
