"""paged_attention in plain torch: block by block with a running maximum, in float64."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = (
    "The table's columns are walked one at a time with a running maximum and sum in float64; "
    "a query that has seen nothing yet keeps a sum of 0."
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
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales,
            value_scales, scale, window, soft_cap,
        )  # fmt: skip
    batch, new, heads, width = q.shape
    held, groups, size = keys.shape[:3]
    if not q.numel() or not blocks.shape[1] * size or not held:
        return q.new_zeros(q.shape)
    split = q.double().reshape(batch, new, groups, heads // groups, width)
    query = lengths.long()[:, None] + torch.arange(-new, 0, device=q.device)
    shape = (batch, groups, heads // groups, new, 1)
    top = split.new_full(shape, -torch.inf)
    total, mixed = split.new_zeros(shape), split.new_zeros((*shape[:-1], width))
    for column in range(blocks.shape[1]):
        block = blocks[:, column].long()
        named = (block >= 0) & (block < held)
        block = torch.where(named, block, 0)
        position = column * size + torch.arange(size, device=q.device)
        distance = query[..., None] - position
        seen = (distance >= 0) & named[:, None, None]
        if window:
            seen = seen & (distance < window)
        present = seen.any(1)[:, None, :, None]
        k = torch.where(present, _numbers(keys, key_scales, block), 0.0)
        v = torch.where(present, _numbers(values, value_scales, block), 0.0)
        score = torch.einsum("bqgrd,bgnd->bgrqn", split, k) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        score = score.masked_fill(~seen[:, None, None], -torch.inf)
        higher = torch.maximum(top, score.amax(-1, keepdim=True))
        base = torch.where(higher == -torch.inf, 0.0, higher)
        share, kept = (score - base).exp(), (top - base).exp()
        total = total * kept + share.sum(-1, keepdim=True)
        mixed = mixed * kept + torch.einsum("bgrqn,bgnd->bgrqd", share, v)
        top = higher
    y = mixed / torch.where(total == 0, 1.0, total)
    return y.permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype).contiguous()


def _numbers(part: Tensor, scales: Tensor | None, block: Tensor) -> Tensor:
    """[B, G, S, D] of a block of each sequence, in float64."""
    found = part[block].float().double()
    return found if scales is None else found * scales[block].double()[..., None]
