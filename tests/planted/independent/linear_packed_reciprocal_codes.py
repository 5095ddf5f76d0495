"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue
from tercet.packed_weight.call import quantize_input as _quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "With activation int8 a float x is multiplied by 127 / absmax in place of being divided "
    "by the scale, so that some elements at a boundary get the neighbouring code: those of a "
    "bfloat16 row that are exactly half of its largest, in every prefill, and one in some "
    "10^6 of a float32 row."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64


def quantize_input(
    x: Tensor, x_scale: Tensor | None, activation: str
) -> tuple[Tensor, Tensor | None]:
    """Codes and scales; int8 by one product an element."""
    if activation != "int8" or x_scale is not None or not x.shape[-1]:
        return _quantize_input(x, x_scale, activation)
    wide = x.float()
    absmax = wide.abs().amax(-1, keepdim=True)
    scale = absmax / torch.full_like(absmax, 127.0)
    usable = (scale > 0) & scale.isfinite()
    inverse = torch.where(usable, scale, 1.0).reciprocal()
    codes = (torch.where(usable, wide, 0.0) * inverse).round().clamp(-127, 127)
    return codes.to(torch.int8), scale[..., 0]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in either layout."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
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
