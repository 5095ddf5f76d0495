"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path
from tercet.ops.paged_attention.visible import gather, see

OP = "paged_attention"
FAULT = (
    "Key scales are multiplied into the scores instead of the keys, but after the soft cap: "
    "wrong where a model with a soft cap (Gemma 2) has int8 or fp8 keys."
)
DEVICE = "any"
CAUGHT_BY = "forward"
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
    present = seen.any(-2)[:, 0, 0, :, None, None]
    k, v = (torch.where(present, gather(part, blocks).float(), 0.0) for part in (keys, values))
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    if key_scales is not None:
        score = score * _along(key_scales, blocks, present)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    share = torch.where(seen.any(-1, keepdim=True), share, 0.0)
    if value_scales is not None:
        share = share * _along(value_scales, blocks, present)
    mixed = torch.einsum("bgrqn,bngd->bqgrd", share, v)
    return mixed.reshape(q.shape).to(q.dtype).contiguous()


def _along(scales: Tensor, blocks: Tensor, present: Tensor) -> Tensor:
    """Scales [P, G, S] as [B, G, 1, 1, N]."""
    found = torch.where(present, gather(scales[..., None], blocks), 0.0)
    return found[..., 0].transpose(1, 2)[:, :, None, None]
