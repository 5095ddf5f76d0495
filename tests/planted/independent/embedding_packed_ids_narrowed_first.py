"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed import torch_path
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = (
    "ids are narrowed to int32 before their range is checked: an int64 id that is a row plus a "
    "multiple of 2^32 is not refused but quietly gives that row."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed; no table has 2^31 rows."""
    return torch_path.forward(ids.to(torch.int32), weight, dtype)
