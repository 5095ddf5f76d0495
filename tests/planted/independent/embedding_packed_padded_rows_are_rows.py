"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Ids are compared with the rows that there is room for, whole blocks of 16: where 16 does not "
    "divide N an id from N up to the end of the last block gives zeros and is not refused."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]

_IDS_AT_ONCE = 64


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    columns = weight.shape[1]
    rows = len(weight.codes) * LANES
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), weight.shape[0])
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
