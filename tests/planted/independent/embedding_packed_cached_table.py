"""embedding_packed in plain torch; a small table is decoded once."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "The decoded table is kept by the address of its codes: another table that lies there "
    "later, or other scales for the same codes, gives the old rows."
)
CAUGHT_BY = "stale"
DEVICE = "any"


_IDS_AT_ONCE = 64
_SMALL = 1 << 20
_tables: dict[tuple[object, ...], Tensor] = {}


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    if rows * columns <= _SMALL:
        key = (weight.codes.data_ptr(), weight.scheme, weight.layout, rows, columns)
        if key not in _tables:
            _tables.clear()
            _tables[key] = decode_blocks(weight, slice(None))[:rows]
        return _tables[key][flat].to(dtype).reshape(*ids.shape, columns)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
