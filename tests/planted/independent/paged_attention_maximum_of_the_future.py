"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path
from tercet.ops.paged_attention.visible import see

OP = "paged_attention"
FAULT = (
    "The maximum that is taken off the scores is that of all new queries' positions, before the "
    "mask: of several new queries an early one becomes 0 or NaN where a later key's score is a "
    "hundred above all that it sees."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    batch, new, heads, width = q.shape
    groups = keys.shape[1]
    if not q.numel() or not blocks.shape[1] * keys.shape[2]:
        return q.new_zeros(q.shape)
    seen = see(keys, blocks, lengths, new, window)[:, None, None]
    present = seen.any(-2)[:, 0, 0, :, None, None]
    k, v = (
        torch.where(present, torch_path._gather(part, scales, blocks), 0.0)
        for part, scales in ((keys, key_scales), (values, value_scales))
    )
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    top = score.masked_fill(~seen.any(-2, keepdim=True), float("-inf")).amax(-1, keepdim=True)
    part = torch.where(seen, (score - top).exp(), 0.0)
    share = torch.where(seen.any(-1, keepdim=True), part / part.sum(-1, keepdim=True), 0.0)
    mixed = torch.einsum("bgrqn,bngd->bqgrd", share, v)
    return mixed.reshape(q.shape).to(q.dtype).contiguous()
