"""embedding_packed in plain torch: each distinct row is decoded once."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Ids are sorted and made distinct, the blocks of 16 rows that hold them are decoded once, "
    "and rows are copied to where they belong."
)
DEVICE = "any"


_IDS_AT_ONCE = 64


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    blocks, within = (flat // LANES).unique(return_inverse=True)
    for first in range(0, len(blocks), _IDS_AT_ONCE):
        some = blocks[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some).reshape(len(some), LANES, columns)
        here = ((within >= first) & (within < first + len(some))).nonzero()[:, 0]
        y[here] = decoded[within[here] - first, flat[here] % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
