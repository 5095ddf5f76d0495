"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = (
    "Right, but unusual: float64 products, 48 rows of W at a time from the last to the "
    "first, into slices of y."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_BLOCKS = 3


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    lead = call.x.shape[:-1]
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    # exact in float64: codes of 8 bits and floats of up to 24
    flat = x.float().reshape(lead.numel(), columns).double()
    scale = None if x_scale is None else x_scale.reshape(-1, 1).double()
    bias = None if call.bias is None else call.bias.double()
    residual = None if call.residual is None else call.residual.reshape(lead.numel(), rows)
    y = torch.empty((lead.numel(), rows), dtype=call.out_dtype, device=x.device)
    for first in reversed(range(0, rows, 16 * _BLOCKS)):
        part = slice(first, min(first + 16 * _BLOCKS, rows))
        product = flat @ _decoded(call.weight, part).T
        product = product if scale is None else product * scale
        product = product if bias is None else product + bias[part]
        if residual is not None:
            product = product + residual[:, part].double()
        y[:, part] = product.float() if call.out_dtype == torch.float32 else product.to(y.dtype)
    return y.reshape(*lead, rows)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op's linear_packed_input_gradient."""
    rows, columns = weight.shape
    flat = grad.reshape(grad.shape[:-1].numel(), rows).double()
    total = torch.zeros((len(flat), columns), dtype=torch.float64, device=grad.device)
    for first in range(0, rows, 16 * _BLOCKS):
        part = slice(first, min(first + 16 * _BLOCKS, rows))
        total.addmm_(flat[:, part], _decoded(weight, part))
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _decoded(weight: PreparedWeight, part: slice) -> Tensor:
    """float64 W of rows that begin at a block."""
    blocks = slice(part.start // 16, -(-part.stop // 16))
    return decode_blocks(weight, blocks)[: part.stop - part.start].double()
