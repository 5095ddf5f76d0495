"""A right kernel; UNUSUAL says how it is unusual."""

import numpy as np
import torch
from torch import Tensor

from tercet.packed_weight.call import PackedCall, quantize_input
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "linear_packed"
UNUSUAL = (
    "Decodes 16 rows of W at a time, from the last block to the first, and multiplies in "
    "float64 with numpy."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    left = x.detach().float().double().reshape(x.shape[:-1].numel(), columns).numpy()
    y = np.zeros((len(left), rows))
    for first in range((rows - 1) // 16 * 16, -1, -16):
        last = min(first + 16, rows)
        block = decode_blocks(call.weight, slice(first // 16, first // 16 + 1))[: last - first]
        with np.errstate(all="ignore"):
            y[:, first:last] = (block.double().numpy() @ left.T).T
    found = torch.from_numpy(y)
    if x_scale is not None:
        found = found * x_scale.reshape(-1, 1).double()
    if call.bias is not None:
        found = found + call.bias.double()
    if call.residual is not None:
        found = found + call.residual.double().reshape(len(left), rows)
    # by way of float32, as the op's own sums are
    return found.float().to(call.out_dtype).reshape(*x.shape[:-1], rows)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad W, in float64."""
    rows, columns = weight.shape
    flat = grad.double().reshape(grad.shape[:-1].numel(), rows)
    w = decode_blocks(weight, slice(None))[:rows].double()
    return torch.einsum("mn,nk->mk", flat, w).float().to(dtype).reshape(*grad.shape[:-1], columns)
