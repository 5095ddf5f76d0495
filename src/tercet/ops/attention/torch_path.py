"""attention in plain torch, on any device, in float32, a run of queries at a time."""

import torch
from torch import Tensor

from tercet.ops.attention.visible import see

# scores that are in memory at once: 64 MB
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
        share = score.masked_fill(~seen[rows], float("-inf")).softmax(-1)
        share = torch.where(seen[rows].any(-1, keepdim=True), share, 0.0)
        mixed = torch.einsum("bgrtn,bgnd->btgrd", share, v)
        y[:, rows] = mixed.reshape(batch, -1, heads, width).to(q.dtype)
    return y
