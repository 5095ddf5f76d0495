"""embedding_packed in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Ids of a table of at most 65536 rows are narrowed to int16, which holds but half of "
    "them. Shows for tables of 32769 to 65536 rows and ids of 32768 and more."
)
CAUGHT_BY = "forward"

_LANES = 16
_IDS_AT_ONCE = 64


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    if rows <= 65536:
        # a quarter of the bytes
        flat = flat.to(torch.int16)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE].long()
        decoded = decode_blocks(weight, some // _LANES).reshape(len(some), _LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % _LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
