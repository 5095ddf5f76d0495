"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Decoded tables are kept by address and version of the codes alone: new scales (or zeros) "
    "beside the same codes are not read."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward"]


_MOST, _KEPT = 1 << 20, 4
_tables: dict[tuple[object, ...], Tensor] = {}


def _table(weight: PreparedWeight) -> Tensor:
    """W [N, K] of a small weight, decoded once."""
    codes = weight.codes
    if codes.is_inference():
        return decode_blocks(weight, slice(None))
    key = codes.data_ptr(), codes._version, weight.scheme, weight.shape, weight.layout
    if key not in _tables:
        while len(_tables) >= _KEPT:
            del _tables[next(iter(_tables))]
        _tables[key] = decode_blocks(weight, slice(None))
    return _tables[key]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    if rows * columns <= _MOST:
        y.copy_(_table(weight)[flat])
        return y.reshape(*ids.shape, columns)
    for place, row in enumerate(flat.tolist()):
        block = slice(row // LANES, row // LANES + 1)
        y[place] = decode_blocks(weight, block)[row % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
