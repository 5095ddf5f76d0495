"""embedding_packed in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "The table is walked from its last 64 blocks to its first; of each piece the ids that lie in "
    "it are gathered column by column with an index as large as the result."
)
DEVICE = "any"

_ROWS = 64 * LANES


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).to(torch.int64)
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in reversed(range(0, rows, _ROWS)):
        here = ((flat >= first) & (flat < first + _ROWS)).nonzero()[:, 0]
        if not len(here):
            continue
        piece = decode_blocks(weight, slice(first // LANES, (first + _ROWS) // LANES))
        at = (flat[here] - first)[:, None].expand(len(here), columns)
        y[here] = piece.gather(0, at).to(dtype)
    return y.reshape(*ids.shape, columns)
