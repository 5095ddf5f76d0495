"""paged_attention in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = (
    "One sequence at a time, of which only the positions that some query sees are gathered, "
    "in descending order."
)


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
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    batch, new, heads, width = q.shape
    held, groups, block, _ = keys.shape
    if not q.numel():
        return y
    for b in range(batch):
        place = torch.arange(blocks.shape[1] * block - 1, -1, -1, device=q.device)
        named = blocks[b].long()[place // max(block, 1)]
        at = int(lengths[b]) + torch.arange(-new, 0, device=q.device)
        distance = at[:, None] - place
        seen = (distance >= 0) & (named >= 0) & (named < held)
        if window:
            seen = seen & (distance < window)
        some = seen.any(0)
        seen, named, row = seen[:, some], named[some], (place % max(block, 1))[some]
        if not seen.numel():
            continue
        # [G, N, D]
        k = _rows(keys, key_scales, named, row)
        v = _rows(values, value_scales, named, row)
        # [G, Q, H / G, D]
        mine = q[b].float().reshape(new, groups, heads // groups, width).transpose(0, 1)
        score = (mine.reshape(groups, -1, width) @ k.transpose(1, 2)) * scale
        score = score.reshape(groups, new, heads // groups, -1)
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        score = score.masked_fill(~seen[:, None], -torch.inf)
        top = score.amax(-1, keepdim=True)
        # a query that sees nothing has no maximum
        none = ~seen.any(-1)[:, None, None]
        share = (score - torch.where(none, torch.zeros_like(top), top)).exp()
        share = torch.where(seen[:, None], share, torch.zeros_like(share))
        total = share.sum(-1, keepdim=True)
        share = share / torch.where(none, torch.ones_like(total), total)
        mixed = share.reshape(groups, -1, share.shape[-1]) @ v
        mixed = mixed.reshape(groups, new, heads // groups, width).transpose(0, 1)
        y[b] = mixed.reshape(new, heads, width).to(q.dtype)
    return y


def _rows(part: Tensor, scales: Tensor | None, named: Tensor, row: Tensor) -> Tensor:
    found = (
        part.view(torch.uint8)[named, :, row].view(part.dtype)
        if _byte(part)
        else part[named, :, row]
    )
    found = found.float()
    if scales is not None:
        found = found * scales[named, :, row][..., None]
    return found.transpose(0, 1)


def _byte(part: Tensor) -> bool:
    return part.element_size() == 1
