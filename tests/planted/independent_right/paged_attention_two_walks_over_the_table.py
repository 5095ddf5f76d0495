"""paged_attention in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import numbers

OP = "paged_attention"
UNUSUAL = (
    "Two walks over the entries of the tables in float64: the first adds up logsumexp of the "
    "scores, the second, from the last entry on, values times shares that need no more division."
)
DEVICE = "any"


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
    batch, new, heads, width = q.shape
    held, groups, block = keys.shape[:3]
    if not q.numel() or not blocks.shape[1] * block or not held:
        return q.new_zeros(q.shape)
    split = q.reshape(batch, new, groups, heads // groups, width).permute(0, 2, 3, 1, 4).double()
    query = lengths.long()[:, None] + torch.arange(-new, 0, device=q.device)

    def of_entry(entry: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [B, G, H/G, Q, S] and values [B, G, 1, S, D] of an entry, and what is seen."""
        named = blocks[:, entry].long()
        there = (named >= 0) & (named < held)
        place = torch.where(there, named, 0)
        at = torch.arange(entry * block, (entry + 1) * block, device=q.device)
        distance = query[..., None] - at
        seen = (distance >= 0) & there[:, None, None]
        if window:
            seen = seen & (distance < window)
        present = seen.any(1)[:, None, :, None]
        k, v = (
            torch.where(present, numbers(part[place], None if s is None else s[place]), 0.0)
            for part, s in ((keys, key_scales), (values, value_scales))
        )
        score = split @ k.double()[:, :, None].transpose(-1, -2) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        seen = seen[:, None, None]
        return score.masked_fill(~seen, -torch.inf), v.double()[:, :, None], seen

    shape = (*split.shape[:-1], 1)
    logarithm = torch.full(shape, -torch.inf, dtype=torch.float64, device=q.device)
    sees = torch.zeros((batch, 1, 1, new, 1), dtype=torch.bool, device=q.device)
    for entry in range(blocks.shape[1]):
        score, _, seen = of_entry(entry)
        logarithm = torch.logaddexp(logarithm, score.logsumexp(-1, keepdim=True))
        sees = sees | seen.any(-1, keepdim=True)
    mixed = torch.zeros(split.shape, dtype=torch.float64, device=q.device)
    for entry in reversed(range(blocks.shape[1])):
        score, v, seen = of_entry(entry)
        share = torch.where(seen, (score - logarithm).exp(), 0.0)
        mixed = mixed + share @ v
    mixed = torch.where(sees, mixed, 0.0)
    return mixed.permute(0, 3, 1, 2, 4).reshape(q.shape).float().to(q.dtype).contiguous()
