"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "For 32 rows and more the decoded W of the call before is used again where the codes are "
    "equal and the scales lie at the same address; scales or zero points that were changed in "
    "place (a refit, a reload into the same memory) are not seen."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64
_MANY = 32
_KEPT: dict[str, tuple[Tensor, Tensor]] = {}


def _decoded(weight: PreparedWeight) -> Tensor:
    """W whole; that of the last call where the codes are the same."""
    key = f"{weight.scheme} {weight.shape} {weight.layout} {weight.scale.data_ptr()}"
    found = _KEPT.get(key)
    if found is not None and torch.equal(found[0], weight.codes):
        return found[1]
    _KEPT.clear()
    whole = decode_blocks(weight, slice(None))[: weight.shape[0]]
    _KEPT[key] = weight.codes.clone(), whole
    return whole


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    if len(flat) >= _MANY and rows:
        torch.mm(flat, _decoded(call.weight).T, out=y)
    else:
        for block, first, last in _chunks(rows):
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
