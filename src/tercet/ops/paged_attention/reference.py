"""The meaning of paged_attention, in float64 (Kwon et al. 2023, arXiv:2309.06180)."""

import torch
from torch import Tensor

from tercet.ops.paged_attention.visible import gather, see

# p_n times a scale of codes is a product of q's dtype, or of its two parts in bfloat16: what a
# subnormal one is rounded by, over the tolerance
_LOST = {torch.float32: 2.0**-132, torch.float16: 2.0**-118, torch.bfloat16: 2.0**-118}


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """softmax(cap(scale q k^T)) v over the positions that each query sees; 0 where it sees none."""
    keys, values = _of_codes(keys, key_scales), _of_codes(values, value_scales)
    share, _, v = _shares(q, keys, values, blocks, lengths, scale, window, soft_cap)
    return torch.einsum("bgrqn,bngd->bqgrd", share, v).reshape(q.shape)


def magnitude(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """sum_n p_n |v_n| (1 + a_n + sum_m p_m a_m), a_n = scale |q| |k_n|.

    A score's rounding error is relative to a_n; the exponential makes it one of p_n, and so does
    the sum that p is divided by. A capped one is rounded as (1 - e) / (1 + e), to 2^-23 of half the
    cap: with relative = 4e-6 a thirty-second of the cap beside a_n.
    """
    if value_scales is not None:
        value_scales = value_scales.double() + _LOST[q.dtype]
    keys, values = _of_codes(keys, key_scales), _of_codes(values, value_scales)
    share, size, v = _shares(q, keys, values, blocks, lengths, scale, window, soft_cap)
    size = size + abs(soft_cap) / 32
    off = 1 + size + (share * size).sum(-1, keepdim=True)
    return torch.einsum("bgrqn,bngd->bqgrd", share * off, v.abs()).reshape(q.shape)


def _of_codes(part: Tensor, scales: Tensor | None) -> Tensor:
    """The numbers that codes [P, G, S, D] stand for; what is no code as it is."""
    return part if scales is None else part.float().double() * scales.double()[..., None]


def _shares(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """p and scale |q| |k| [B, G, H/G, Q, N], and v [B, N, G, D]."""
    batch, new, heads, width = q.shape
    groups = keys.shape[1]
    seen = see(keys, blocks, lengths, new, window)[:, None, None]
    present = seen.any(-2)[:, 0, 0, :, None, None]
    # what no query sees may be anything, NaN too
    k, v = (
        gather(part, blocks).double().where(present, torch.zeros((), dtype=torch.float64))
        for part in (keys, values)
    )
    split = q.double().reshape(batch, new, groups, heads // max(groups, 1), width)
    score = torch.einsum("bqgrd,bngd->bgrqn", split, k) * scale
    size = torch.einsum("bqgrd,bngd->bgrqn", split.abs(), k.abs()) * abs(scale)
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return share.where(seen.any(-1, keepdim=True), 0.0), size.where(seen, 0.0), v
