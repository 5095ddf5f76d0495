"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "Ids whose first and last are as far apart as there are ids are decoded as one range, "
    "though those between may be in any order or repeated."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

_IDS_AT_ONCE = 64


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in either layout."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    if len(flat) > 2 and int(flat[-1] - flat[0]) == len(flat) - 1:
        # a run of rows, as positions have it: whole blocks, decoded once
        low, high = int(flat[0]), int(flat[-1])
        run = decode_blocks(weight, slice(low // LANES, high // LANES + 1))
        run = run[low % LANES : low % LANES + len(flat)]
        return run.to(dtype).reshape(*ids.shape, columns).contiguous()
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
