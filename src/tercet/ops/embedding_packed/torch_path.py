"""embedding_packed in plain torch, on any device: decodes the blocks that hold the chosen rows."""

import torch
from torch import Tensor

from tercet.kernel.prepared import PreparedWeight, decode_blocks
from tercet.kernel.rows16 import LANES
from tercet.ops.embedding_packed.check import out_of_range

_IDS_AT_ONCE = 64


def forward(
    ids: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    """As op.embedding_packed, on the parts of a PreparedWeight."""
    flat = ids.reshape(-1).long()
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    weight = PreparedWeight(
        codes=codes, scale=scale, zero=zero, scheme=scheme, shape=(rows, columns)
    )
    y = torch.empty((len(flat), columns), dtype=dtype, device=ids.device)
    for first in range(0, len(flat), _IDS_AT_ONCE):
        some = flat[first : first + _IDS_AT_ONCE]
        decoded = decode_blocks(weight, some // LANES).reshape(len(some), LANES, columns)
        places = torch.arange(len(some), device=some.device)
        y[first : first + len(some)] = decoded[places, some % LANES].to(dtype)
    return y.reshape(*ids.shape, columns)
