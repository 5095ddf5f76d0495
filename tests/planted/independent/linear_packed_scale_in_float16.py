"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = (
    "Scales are converted to x's dtype where x is float16: float32 ones (nvfp4's two levels) "
    "are rounded to 11 bits, which shows in a float32 result (logits); small ones (under 8e-6 "
    "in bfloat16, 6e-5 in float32) become subnormal or 0, which shows in float16 too."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_BLOCKS_AT_ONCE = 64


def forward(call: PackedCall) -> Tensor:
    rows, columns = call.weight.shape
    weight = call.weight
    if call.x.dtype == torch.float16 and weight.scale.dtype != torch.float16:
        # scales as wide as x: half of their bytes, and no conversion in the loop
        weight = replace(weight, scale=weight.scale.to(call.x.dtype))
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(_rows(x), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    for block, first, last in _chunks(rows):
        y[:, first:last] = flat @ decode_blocks(weight, block)[: last - first].T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    rows, columns = weight.shape
    flat = grad.reshape(_rows(grad), rows).float()
    total = torch.zeros((len(flat), columns), dtype=torch.float32, device=grad.device)
    for block, first, last in _chunks(rows):
        total += flat[:, first:last] @ decode_blocks(weight, block)[: last - first]
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _rows(x: Tensor) -> int:
    return x.shape[:-1].numel()


def _chunks(rows: int) -> list[tuple[slice, int, int]]:
    step = 16 * _BLOCKS_AT_ONCE
    return [
        (slice(first // 16, (first + step) // 16), first, min(first + step, rows))
        for first in range(0, rows, step)
    ]
