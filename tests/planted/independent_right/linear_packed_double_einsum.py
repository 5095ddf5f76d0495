"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = "Einsum in double precision over 7 blocks of rows at a time, from the last to the first."
DEVICE = "any"
__all__ = ["forward", "gradient"]

_BLOCKS = 7


def _pieces(rows: int) -> list[tuple[slice, slice]]:
    """Blocks of 16 rows and their rows."""
    step = 16 * _BLOCKS
    firsts = reversed(range(0, rows, step))
    return [(slice(at // 16, at // 16 + _BLOCKS), slice(at, min(at + step, rows))) for at in firsts]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    m = x.shape[:-1].numel()
    flat = x.reshape(m, columns).float().double()
    y = torch.empty((m, rows), dtype=torch.float64, device=x.device)
    for blocks, some in _pieces(rows):
        w = decode_blocks(call.weight, blocks)[: some.stop - some.start].double()
        y[:, some] = torch.einsum("mk,nk->mn", flat, w)
    if x_scale is not None:
        y = y * x_scale.reshape(m, 1).double()
    if call.residual is not None:
        y = call.residual.reshape(m, rows).double() + y
    if call.bias is not None:
        y = call.bias.double() + y
    return y.to(call.out_dtype).reshape(*x.shape[:-1], rows)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W, in dtype."""
    rows, columns = weight.shape
    m = grad.shape[:-1].numel()
    flat = grad.reshape(m, rows).double()
    total = torch.zeros((m, columns), dtype=torch.float64, device=grad.device)
    for blocks, some in _pieces(rows):
        w = decode_blocks(weight, blocks)[: some.stop - some.start].double()
        total += torch.einsum("mn,nk->mk", flat[:, some], w)
    return total.to(dtype).reshape(*grad.shape[:-1], columns)
