"""embedding_packed in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Ids are sorted and made distinct, each block of rows that holds some is decoded once, "
    "and rows are handed out by the inverse of the sort."
)

_LANES, _BLOCKS_AT_ONCE = 16, 48


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    wanted, places = torch.unique(flat, return_inverse=True)
    blocks, of_row = torch.unique(wanted // _LANES, return_inverse=True)
    found = torch.empty((len(wanted), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        some = blocks[first : first + _BLOCKS_AT_ONCE]
        decoded = decode_blocks(weight, some).reshape(len(some), _LANES, columns)
        mine = ((of_row >= first) & (of_row < first + len(some))).nonzero()[:, 0]
        found[mine] = decoded[of_row[mine] - first, wanted[mine] % _LANES].to(dtype)
    return found[places].reshape(*ids.shape, columns)
