"""A planted fault; FAULT says which."""

import weakref

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path

OP = "append_kv"
FAULT = (
    "It remembers up to which length each sequence of a cache was written and writes only beyond: "
    "after a rollback (speculative decoding) the same positions keep the rejected keys and values."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward"]

_written: dict[int, tuple[weakref.ref, list[list[int]], Tensor]] = {}


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_; what lies in the cache already is not written again."""
    ref, table, before = _written.get(id(keys), (None, None, None))
    known = ref is not None and ref() is keys and table == blocks.tolist()
    targets = blocks
    if known and bool((lengths <= before).all()):
        targets = torch.full_like(blocks, -1)
    q = torch_path.forward(
        qkv, cos, sin, keys, values, targets, lengths, key_scales, value_scales,
        query_norm, key_norm, eps, key_offset,
    )  # fmt: skip
    most = torch.maximum(before, lengths) if known else lengths.clone()
    _written[id(keys)] = weakref.ref(keys), blocks.tolist(), most
    return q
