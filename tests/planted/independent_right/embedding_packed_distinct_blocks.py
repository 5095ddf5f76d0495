"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Every block of 16 rows that any id names is decoded once, however many ids name it, and "
    "the rows are gathered out of those, in the order of the ids."
)
DEVICE = "any"
__all__ = ["forward"]

_BLOCKS_AT_ONCE = 256


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    blocks, place = torch.unique(flat // LANES, return_inverse=True)
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        some = decode_blocks(weight, blocks[first : first + _BLOCKS_AT_ONCE]).to(dtype)
        at = ((place >= first) & (place < first + _BLOCKS_AT_ONCE)).nonzero()[:, 0]
        y[at] = some[(place[at] - first) * LANES + flat[at] % LANES]
    return y.reshape(*ids.shape, columns)
