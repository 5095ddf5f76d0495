"""embedding_packed in plain torch: a small table is decoded once and kept."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "The decoded table is kept per scheme and shape and taken again where the codes are "
    "equal, but scales and zero points are not compared: after a new scale for the same codes "
    "(a rescaled or reloaded table, another table with equal codes) the old rows come back; "
    "one weight is right."
)
CAUGHT_BY = "stale"
DEVICE = "any"


_IDS_AT_ONCE = 64
_KEPT_NUMBERS = 1 << 22
_TABLES: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    if rows * columns <= _KEPT_NUMBERS:
        return _table(weight)[flat].to(dtype).reshape(*ids.shape, columns)
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)


def _table(weight: PreparedWeight) -> Tensor:
    """float32 W [N, K], decoded once for the codes that it is asked for."""
    key = (weight.scheme, weight.shape, weight.layout, str(weight.codes.device))
    kept = _TABLES.get(key)
    if kept is not None and torch.equal(kept[0], weight.codes):
        return kept[1]
    with torch.inference_mode(mode=False):
        table = decode_blocks(weight, slice(None))[: weight.shape[0]]
        _TABLES[key] = weight.codes.clone(), table
    return table
