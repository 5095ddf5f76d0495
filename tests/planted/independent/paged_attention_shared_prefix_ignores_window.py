"""paged_attention in plain torch, with a fault; written blind.

Where all sequences begin with the same block (a shared prompt) and are longer than it, that block
is computed for all queries at once, without a mask. With a window the block may lie before it, and
is seen all the same. A user hits it with a system prompt that is cached once, a model with a
sliding window, and two or more requests.
"""

import torch
from torch import Tensor

from tercet.ops.paged_attention.torch_path import _gather
from tercet.ops.paged_attention.visible import see

OP = "paged_attention"
FAULT = (
    "Where two or more sequences share their first block and are longer than it, all queries see "
    "it, also where their window begins behind it."
)
CAUGHT_BY = "forward"
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
    groups, block = keys.shape[1], keys.shape[2]
    if not q.numel() or not blocks.shape[1] * block:
        return q.new_zeros(q.shape)
    seen = see(keys, blocks, lengths, new, window)
    if _shares_its_first(blocks, len(keys)) and int(lengths.min()) - new + 1 >= block:
        # a common prefix: every query sees all of it
        seen[..., :block] = True
    seen = seen[:, None, None]
    present = seen.any(-2)[:, 0, 0, :, None, None]
    k, v = (
        torch.where(present, _gather(part, scales, blocks), 0.0)
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


def _shares_its_first(blocks: Tensor, held: int) -> bool:
    first = blocks[:, 0]
    return len(first) > 1 and 0 <= int(first[0]) < held and bool((first == first[0]).all())
