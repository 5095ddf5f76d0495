"""The meaning of attention, in float64 (Vaswani et al. 2017, arXiv:1706.03762)."""

from collections.abc import Generator

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
    mixed = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for heads, k, v in _groups(q, keys, values):
        share = _shares(q[:, :, heads], k, scale, causal, window, soft_cap)
        mixed[:, :, heads] = torch.einsum("brtn,bnd->btrd", share, v)
    return mixed


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
    seen = see(q.shape[1], keys.shape[2], causal, window, q.device)
    lost = torch.where(seen, _LOST[q.dtype], 0.0)
    mixed = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for heads, k, v in _groups(q, keys, values):
        share = _shares(q[:, :, heads], k, scale, causal, window, soft_cap)
        size = torch.einsum("btrd,bnd->brtn", q[:, :, heads].double().abs(), k.abs())
        size = (size * abs(scale)).where(seen, 0.0) + abs(soft_cap) / 32
        off = 1 + _SCORES[q.dtype] * (size + (share * size).sum(-1, keepdim=True))
        mixed[:, :, heads] = torch.einsum("brtn,bnd->btrd", share * off + lost, v.abs())
    return mixed


def _groups(
    q: Tensor, keys: Tensor, values: Tensor
) -> Generator[tuple[slice, Tensor, Tensor], None, None]:
    """The query heads of each key head, and its keys and values [B, N, D] in float64.

    One by one: scores of all heads of a long prompt would fill a GPU.
    """
    groups = keys.shape[1]
    each = q.shape[2] // max(groups, 1)
    for group in range(groups):
        heads = slice(group * each, (group + 1) * each)
        yield heads, keys[:, group].double(), values[:, group].double()


def _shares(
    q: Tensor, k: Tensor, scale: float, causal: bool, window: int, soft_cap: float
) -> Tensor:
    """p [B, H/G, T, N] of queries [B, T, H/G, D] and keys [B, N, D]; 0 in rows that see nothing."""
    seen = see(q.shape[1], k.shape[1], causal, window, q.device)
    score = torch.einsum("btrd,bnd->brtn", q.double(), k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return share.where(seen.any(-1, keepdim=True), 0.0)
