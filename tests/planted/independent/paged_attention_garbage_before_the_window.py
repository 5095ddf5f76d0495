"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.paged_attention.visible import gather, see
from tercet.packed_weight.cached_rows import numbers

OP = "paged_attention"
FAULT = (
    "Only what lies behind a sequence's end, or in no block, is taken for unwritten memory: a NaN "
    "or inf before the window, which no query sees (blocks that were given away), times a share "
    "of 0 is NaN."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


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
    groups = keys.shape[1]
    if not q.numel() or not blocks.shape[1] * keys.shape[2]:
        return q.new_zeros(q.shape)
    seen = see(keys, blocks, lengths, new, window)[:, None, None]
    written = see(keys, blocks, lengths, new, 0).any(1)[..., None, None]
    k, v = (
        torch.where(written, _gather(part, scales, blocks), 0.0)
        for part, scales in ((keys, key_scales), (values, value_scales))
    )
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    share = torch.where(seen.any(-1, keepdim=True), share, 0.0)
    mixed = torch.einsum("bgrqn,bngd->bqgrd", share, v)
    return mixed.reshape(q.shape).to(q.dtype).contiguous()


def _gather(part: Tensor, scales: Tensor | None, blocks: Tensor) -> Tensor:
    found = gather(part, blocks)
    if scales is None or scales.dim() == part.dim():
        return numbers(found, None if scales is None else gather(scales, blocks))
    return numbers(found, gather(scales[..., None], blocks)[..., 0])
