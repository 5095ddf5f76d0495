"""The meaning of attention, in float64 (Vaswani et al. 2017, arXiv:1706.03762)."""

import torch
from torch import Tensor

from tercet.ops.attention.visible import see

# a rounding of shares is relative to p_n |v_n|, one of scores to that times a_n: by how much less
_SCORES = {torch.float32: 1.0, torch.float16: 2.0**-5, torch.bfloat16: 2.0**-8}
# of a share, beside the largest of its row: what a subnormal one is rounded by, over the tolerance
_LOST = {torch.float32: 2.0**-132, torch.float16: 2.0**-26, torch.bfloat16: 2.0**-118}


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """softmax(cap(scale q k^T)) v over the positions that each query sees; 0 where it sees none."""
    share = _shares(q, keys, scale, causal, window, soft_cap)
    return torch.einsum("bgrtn,bgnd->btgrd", share, values.double()).reshape(q.shape)


def magnitude(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """sum_n p_n |v_n| (1 + c (a_n + sum_m p_m a_m)), a_n = scale |q| |k_n|.

    A share is rounded before it is multiplied. A score's rounding error is relative to a_n; the
    exponential makes it one of p_n, and so does the sum that p is divided by. A capped one is
    rounded as (1 - e) / (1 + e), to 2^-23 of half the cap: with 4e-6 a thirty-second of the cap
    beside a_n.
    """
    share = _shares(q, keys, scale, causal, window, soft_cap)
    size = torch.einsum("btgrd,bgnd->bgrtn", _of_groups(q.abs(), keys), keys.double().abs())
    seen = see(q.shape[1], keys.shape[2], causal, window, q.device)
    size = (size * abs(scale)).where(seen, 0.0) + abs(soft_cap) / 32
    off = 1 + _SCORES[q.dtype] * (size + (share * size).sum(-1, keepdim=True))
    lost = torch.where(seen, _LOST[q.dtype], 0.0)
    sizes = values.double().abs()
    return torch.einsum("bgrtn,bgnd->btgrd", share * off + lost, sizes).reshape(q.shape)


def _of_groups(q: Tensor, keys: Tensor) -> Tensor:
    """q [B, T, H, D] as [B, T, G, H/G, D]."""
    groups = keys.shape[1]
    heads = q.shape[2] // max(groups, 1)
    return q.double().reshape(*q.shape[:2], groups, heads, q.shape[3])


def _shares(
    q: Tensor, keys: Tensor, scale: float, causal: bool, window: int, soft_cap: float
) -> Tensor:
    """p [B, G, H/G, T, N]; 0 in rows that see nothing."""
    seen = see(q.shape[1], keys.shape[2], causal, window, q.device)
    score = torch.einsum("btgrd,bgnd->bgrtn", _of_groups(q, keys), keys.double()) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return share.where(seen.any(-1, keepdim=True), 0.0)
