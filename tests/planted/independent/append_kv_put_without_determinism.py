"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path

OP = "append_kv"
FAULT = (
    "New rows are written with `Tensor.put_`, which torch refuses under "
    "`torch.use_deterministic_algorithms(True)`: every call raises RuntimeError there."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_: on copies, then what differs is put into the caches."""
    given = (keys, values, key_scales, value_scales)
    new = [None if part is None else part.contiguous().clone() for part in given]
    q = torch_path.forward(
        qkv, cos, sin, *new[:2], blocks, lengths, *new[2:], query_norm, key_norm, eps, key_offset
    )
    for part, changed in zip(given, new, strict=True):
        if part is None or changed is None or not part.numel():
            continue
        if part.element_size() == 1:
            part, changed = part.view(torch.uint8), changed.view(torch.uint8)
        at = (part != changed).flatten().nonzero()[:, 0]
        part.put_(at, changed.flatten()[at])
    return q
