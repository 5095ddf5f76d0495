"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Right, but unusual: each distinct id is decoded once, blocks sorted, and rows are then"
    " gathered."
)
DEVICE = "any"
__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).to(torch.int64)
    wrong = torch.nonzero((flat < 0) | (flat >= rows))
    if wrong.numel():
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    distinct, place = torch.unique(flat, sorted=True, return_inverse=True)
    blocks, which = torch.unique_consecutive(distinct // LANES, return_inverse=True)
    table = decode_blocks(weight, blocks).reshape(len(blocks) * LANES, columns).to(dtype)
    return table[(which * LANES + distinct % LANES)[place]].reshape(*ids.shape, columns)
