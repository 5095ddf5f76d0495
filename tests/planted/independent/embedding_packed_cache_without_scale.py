"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Decoded blocks are kept between calls by the codes' memory and a checksum of the codes: "
    "scales or zero points that change under the same codes are not seen."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward"]

_IDS_AT_ONCE = 64
_SMALL = 1 << 20
_TABLES: dict[tuple[object, ...], Tensor] = {}


def _table(weight: PreparedWeight) -> Tensor:
    """All of a small table, decoded once."""
    codes = weight.codes
    check = int(
        (codes.long().flatten() * torch.arange(1, codes.numel() + 1, device=codes.device)).sum()
    )
    key = (codes.data_ptr(), weight.scheme, weight.shape, weight.layout, check)
    if key not in _TABLES:
        _TABLES.clear()
        _TABLES[key] = decode_blocks(weight, slice(None))
    return _TABLES[key]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        if rows * columns <= _SMALL:
            y[first : first + len(some)] = _table(weight)[some].to(dtype)
            continue
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
