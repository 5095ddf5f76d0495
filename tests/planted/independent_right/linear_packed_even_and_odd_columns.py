"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = (
    "Right, but unusual: the columns of x and W at even places are multiplied apart from those at "
    "odd ones, a block of 16 outputs at a time, in float64."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(x.shape[:-1].numel(), columns).float().double()
    y = torch.zeros((len(flat), rows), dtype=torch.float64, device=x.device)
    for block in range(len(call.weight.codes)):
        some = decode_blocks(call.weight, slice(block, block + 1)).double()
        part = y[:, 16 * block : 16 * block + 16]
        for parity in (0, 1):
            part += flat[:, parity::2] @ some[: part.shape[1], parity::2].T
    if x_scale is not None:
        y *= x_scale.reshape(len(flat), 1)
    if call.bias is not None:
        y += call.bias
    if call.residual is not None:
        y += call.residual.reshape(y.shape)
    return y.to(call.out_dtype).reshape(*x.shape[:-1], rows)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op's gradient, the outputs from the last on."""
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).double()
    total = torch.zeros((len(flat), columns), dtype=torch.float64, device=grad.device)
    for block in reversed(range(len(weight.codes))):
        part = flat[:, 16 * block : 16 * block + 16]
        some = decode_blocks(weight, slice(block, block + 1)).double()
        total += part @ some[: part.shape[1]]
    return total.to(dtype).reshape(*grad.shape[:-1], columns)
