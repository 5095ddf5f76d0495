"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path

OP = "append_kv"
FAULT = (
    "Rows are written by strides from the start of the storage, without the storage offset: in "
    "place on one layer's view of a larger cache, another layer's blocks are overwritten instead."
)
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_."""
    parts = [
        None if part is None else torch.as_strided(part, part.shape, part.stride(), 0)
        for part in (keys, values, key_scales, value_scales)
    ]
    if keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr():
        # the two halves of one tensor
        parts[1] = values
    return torch_path.forward(
        qkv, cos, sin, *parts[:2], blocks, lengths, *parts[2:],
        query_norm, key_norm, eps, key_offset,
    )  # fmt: skip
