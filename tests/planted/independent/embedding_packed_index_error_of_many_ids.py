"""embedding_packed in plain torch, with a fault; written blind.

Where there are more ids than rows, the whole table is decoded once and index_select looks after the
range: it does, but with an IndexError, where the op promises UnsupportedError and says which id is
wrong. A user hits it with a long prompt of a wrong tokenizer and a small table (of a draft model):
a server that catches the op's error goes down.
"""

import torch
from torch import Tensor

from tercet.ops.embedding_packed import torch_path
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
FAULT = (
    "With more ids than the table has rows, an id out of range raises torch's IndexError rather "
    "than UnsupportedError."
)
CAUGHT_BY = "forward"
DEVICE = "cpu"


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    flat = ids.reshape(-1)
    if len(flat) <= rows:
        return torch_path.forward(ids, weight, dtype)
    table = decode_blocks(weight, slice(None))[:rows].to(dtype)
    return table.index_select(0, flat).reshape(*ids.shape, columns)
