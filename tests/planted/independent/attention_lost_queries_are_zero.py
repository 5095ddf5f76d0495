"""attention in plain torch, with a fault; written blind.

A query that sees nothing has shares of NaN, which nan_to_num makes 0, and with them those of a
query that is NaN itself, or whose scores overflow: its result is 0 where the formula gives NaN. A
user hits it when training diverges: the loss stays finite, and nobody notices.
"""

import torch
from torch import Tensor

from tercet.ops.attention.visible import see

OP = "attention"
FAULT = (
    "Shares that are NaN become 0 (nan_to_num, for queries that see nothing), so a query with NaN "
    "or inf in it gives 0."
)
CAUGHT_BY = "values"
DEVICE = "any"

_SCORES = 2**24


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
    each = max(1, _SCORES // (batch * heads * length))
    for first in range(0, new, each):
        rows = slice(first, first + each)
        score = torch.einsum("btgrd,bgnd->bgrtn", split[:, rows], k) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        share = score.masked_fill(~seen[rows], float("-inf")).softmax(-1).nan_to_num(0.0)
        mixed = torch.einsum("bgrtn,bgnd->btgrd", share, v)
        y[:, rows] = mixed.reshape(batch, -1, heads, width).to(q.dtype)
    return y
