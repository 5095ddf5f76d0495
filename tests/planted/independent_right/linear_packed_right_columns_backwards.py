"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
FAULT = "None: sums in float64 over pieces of 48 columns, the last first."
CAUGHT_BY = ""
DEVICE = "any"

__all__ = ["forward", "gradient"]

_PIECE = 48


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(x.shape[:-1].numel(), columns).float().double()
    w = decode_blocks(call.weight, slice(None))[:rows].double()
    y = torch.zeros((len(flat), rows), dtype=torch.float64, device=x.device)
    for first in reversed(range(0, columns, _PIECE)):
        piece = slice(first, first + _PIECE)
        y += (w[:, piece] @ flat[:, piece].T).T
    y = y.reshape(*x.shape[:-1], rows)
    if x_scale is not None:
        y = y * x_scale.double()[..., None]
    for term in (call.residual, call.bias):
        y = y if term is None else y + term.double()
    return y.to(call.out_dtype).contiguous()


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op's linear_packed_input_gradient."""
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).double()
    w = decode_blocks(weight, slice(None))[:rows].double()
    found = torch.empty((len(flat), columns), dtype=dtype, device=grad.device)
    for first in reversed(range(0, columns, _PIECE)):
        piece = slice(first, first + _PIECE)
        found[:, piece] = flat @ w[:, piece]
    return found.reshape(*grad.shape[:-1], columns)
