"""linear_packed in plain torch, with a fault; written blind.

W is decoded 1024 rows at a time, and the chunks are counted from the rows that fill whole blocks of
16. A last, ragged block belongs to the last chunk, unless that one was full: with N = 1024 n + r,
r from 1 to 15, the last r outputs are never computed. A user hits it with a head whose vocabulary
is a little above a multiple of 1024 (32001 to 32015 is one of these: a tokenizer with some tokens
added).
"""

import torch
from torch import Tensor

from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.weight import decode_blocks

OP = "linear_packed"
FAULT = "With N = 1024 n + r, n at least 1 and r from 1 to 15, the last r columns are not computed."
CAUGHT_BY = "poison"
DEVICE = "any"
__all__ = ["forward", "gradient"]

_STEP = 1024


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    rows, columns = call.weight.shape
    x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
    flat = x.reshape(x.shape[:-1].numel(), columns).float()
    y = torch.empty((len(flat), rows), dtype=torch.float32, device=x.device)
    whole = rows - rows % 16
    for first in range(0, max(whole, 1), _STEP):
        last = min(first + _STEP, rows)
        decoded = decode_blocks(call.weight, slice(first // 16, (first + _STEP) // 16))
        y[:, first:last] = flat @ decoded[: last - first].T
    y = y.view(*x.shape[:-1], rows)
    return apply_epilogue(y, x_scale, call.bias, call.residual, call.out_dtype)
