"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = "None: each row that is named is decoded once, from the last on, and copied to its places."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    places: dict[int, list[int]] = {}
    for at, row in enumerate(ids.flatten().tolist()):
        if not 0 <= row < rows:
            raise out_of_range(row, at, rows)
        places.setdefault(row, []).append(at)
    y = torch.empty((ids.numel(), columns), dtype=dtype, device=ids.device)
    for row in sorted(places, reverse=True):
        block = row // LANES
        decoded = decode_blocks(weight, slice(block, block + 1))[row % LANES].to(dtype)
        for at in places[row]:
            y[at].copy_(decoded)
    return y.view(*ids.shape, columns)
