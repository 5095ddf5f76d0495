"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Ids are compared with the number of rows only: a negative id (padding with -1 or -100) "
    "gives a row from the table's end instead of an error or NaN."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

_IDS_AT_ONCE = 64


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    # one reduction instead of a mask and a search
    if len(flat) and int(flat.max()) >= rows:
        at = int(flat.argmax())
        raise out_of_range(int(flat[at]), at, rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
