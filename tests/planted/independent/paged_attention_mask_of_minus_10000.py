"""paged_attention in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path
from tercet.ops.paged_attention.visible import gather, see

OP = "paged_attention"
FAULT = (
    "Scores that are not seen become -10000, not -inf. Shows where all scores that a query "
    "sees lie below about -9900 (long, opposed queries and keys): shares go to positions that "
    "are not seen."
)
CAUGHT_BY = "forward"


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
    groups = keys.shape[1]
    if not q.numel() or not blocks.shape[1] * keys.shape[2]:
        return q.new_zeros(q.shape)
    seen = see(keys, blocks, lengths, new, window)[:, None, None]
    # what no query sees may be anything: NaN times a share of 0 would be NaN
    present = seen.any(-2)[:, 0, 0, :, None, None]
    k, v = (
        torch.where(present, _gather(part, scales, blocks), 0.0)
        for part, scales in ((keys, key_scales), (values, value_scales))
    )
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, -1e4).softmax(-1)
    share = torch.where(seen.any(-1, keepdim=True), share, 0.0)
    mixed = torch.einsum("bgrqn,bngd->bqgrd", share, v)
    return mixed.reshape(q.shape).to(q.dtype).contiguous()


def _gather(part: Tensor, scales: Tensor | None, blocks: Tensor) -> Tensor:
    """Keys or values [B, T * S, G, D] of each sequence, in float32."""
    found = gather(part, blocks).float()
    return found if scales is None else found * gather(scales[..., None], blocks)
