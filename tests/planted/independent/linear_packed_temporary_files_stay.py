"""A planted fault; FAULT says which."""

import tempfile

import numpy as np
import torch
from torch import Tensor

from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "linear_packed"
FAULT = (
    "A weight of 65536 numbers and more is decoded into a mapped temporary file that nobody "
    "deletes: every call leaves a file of 4 N K bytes in the temporary folder."
)
CAUGHT_BY = "memory"
DEVICE = "cpu"

__all__ = ["forward", "gradient"]

_LARGE = 1 << 16


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed; a decoded weight need not fit the memory."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    decoded = decode_blocks(call.weight, slice(None))[:rows]
    if rows * columns >= _LARGE:
        with tempfile.NamedTemporaryFile(prefix="tercet-", delete=False) as file:
            mapped = np.memmap(file, np.float32, "w+", shape=(rows, columns))
        mapped[:] = decoded.numpy()
        decoded = torch.from_numpy(mapped)
    y: Tensor = torch.matmul(x.float(), decoded.T)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)
