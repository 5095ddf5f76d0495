"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = (
    "All in float64 and rounded once, by einsum over 16 rows of W at a time, from the last to "
    "the first."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.float().double().reshape(x.shape[:-1].numel(), columns)
    y = torch.zeros((len(flat), rows), dtype=torch.float64, device=x.device)
    for block in reversed(range(-(-rows // 16))):
        first, last = 16 * block, min(16 * block + 16, rows)
        w = decode_blocks(call.weight, slice(block, block + 1))[: last - first].double()
        y[:, first:last] = torch.einsum("mk,nk->mn", flat, w)
    if x_scale is not None:
        y = torch.einsum("mn,m->mn", y, x_scale.reshape(-1).double())
    y = y.reshape(*x.shape[:-1], rows)
    for term in (call.residual, call.bias):
        y = y if term is None else term.double() + y
    return y.to(call.out_dtype).contiguous()


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W, in dtype."""
    rows, columns = weight.shape
    flat = grad.double().reshape(grad.shape[:-1].numel(), rows)
    total = torch.zeros((columns, len(flat)), dtype=torch.float64, device=grad.device)
    for block in range(-(-rows // 16)):
        first, last = 16 * block, min(16 * block + 16, rows)
        w = decode_blocks(weight, slice(block, block + 1))[: last - first].double()
        total = total + w.T @ flat[:, first:last].T
    return total.T.to(dtype).contiguous().reshape(*grad.shape[:-1], columns)
