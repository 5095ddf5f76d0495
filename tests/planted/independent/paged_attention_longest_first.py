"""paged_attention in plain torch, with a fault; written blind.

Batches of 16 and more are computed with the longest sequences first, so that none of them is last
alone, and the results are put back by the same order rather than by its inverse. Of a batch that is
sorted already, or in which pairs change places, both are the same. A user hits it in a server with
16 and more requests: answers go to the wrong ones.
"""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
FAULT = (
    "In batches of 16 and more, sequences are sorted by length and the results put back by the "
    "order itself, not by its inverse."
)
CAUGHT_BY = "forward"
DEVICE = "any"

_MANY = 16


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.paged_attention."""
    options = key_scales, value_scales, scale, window, soft_cap
    if len(lengths) < _MANY:
        return torch_path.forward(q, keys, values, blocks, lengths, *options)
    order = torch.argsort(lengths, descending=True, stable=True)
    y = torch_path.forward(q[order], keys, values, blocks[order], lengths[order], *options)
    return y[order]
