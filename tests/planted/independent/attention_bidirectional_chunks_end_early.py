"""attention in plain torch, with a fault; written blind.

Queries are taken 512 at a time, and a chunk reads the keys up to its own last position: enough for
causal attention. Without `causal` a query sees what lies behind it, too, so all chunks but the last
leave positions out. A user hits it with an encoder and texts of more than 512 tokens.
"""

import torch
from torch import Tensor

from tercet.ops.attention.visible import see

OP = "attention"
FAULT = (
    "Without causal and with more than 512 queries, the earlier chunks of 512 do not read the "
    "keys behind their own last position."
)
CAUGHT_BY = "forward"
DEVICE = "any"

_QUERIES = 512


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.attention."""
    batch, new, heads, width = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not y.numel() or not length:
        return y
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    seen = see(new, length, causal, window, q.device)
    k, v = keys.float(), values.float()
    for first in range(0, new, _QUERIES):
        last = min(first + _QUERIES, new)
        end = length - new + last
        if end <= 0:
            continue
        some = seen[first:last, :end]
        score = torch.einsum("btgrd,bgnd->bgrtn", split[:, first:last], k[:, :, :end]) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        share = score.masked_fill(~some, float("-inf")).softmax(-1)
        share = torch.where(some.any(-1, keepdim=True), share, 0.0)
        mixed = torch.einsum("bgrtn,bgnd->btgrd", share, v[:, :, :end])
        y[:, first:last] = mixed.reshape(batch, -1, heads, width).to(q.dtype)
    return y
