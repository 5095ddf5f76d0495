"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Right, but unusual: the table is decoded 32 blocks at a time from its end, and each piece "
    "gives its rows to all the ids that name one of them."
)
DEVICE = "any"

__all__ = ["forward"]

_BLOCKS = 32


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    step = _BLOCKS * LANES
    for first in reversed(range(0, rows, step)):
        mine = ((flat >= first) & (flat < first + step)).nonzero()[:, 0]
        if len(mine):
            some = slice(first // LANES, first // LANES + _BLOCKS)
            y[mine] = decode_blocks(weight, some)[flat[mine] - first].to(dtype)
    return y.reshape(*ids.shape, columns)
