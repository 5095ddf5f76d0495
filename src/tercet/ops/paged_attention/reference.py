"""The meaning of paged_attention, in float64 (Kwon et al. 2023, arXiv:2309.06180)."""

import torch
from torch import Tensor

from tercet.ops.paged_attention.visible import gather, see
from tercet.packed_weight.exact_int4_rows import of_rows
from tercet.packed_weight.int4_rows import split_scales

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
    keys, values = _numbers(keys, key_scales), _numbers(values, value_scales)
    share, seen = _shares(q, keys, blocks, lengths, scale, window, soft_cap)
    v = _found(values, blocks, seen)
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
    share, seen = _shares(q, _numbers(keys, key_scales), blocks, lengths, scale, window, soft_cap)
    k = _found(_sizes(keys, key_scales), blocks, seen)
    size = torch.einsum("bqgrd,bngd->bgrqn", _of_groups(q.abs(), keys), k) * abs(scale)
    size = size.where(seen[:, None, None], 0.0) + abs(soft_cap) / 32
    off = 1 + size + (share * size).sum(-1, keepdim=True)
    v = _found(_sizes(values, value_scales, _LOST[q.dtype]), blocks, seen)
    return torch.einsum("bgrqn,bngd->bqgrd", share * off, v).reshape(q.shape)


def _numbers(part: Tensor, scales: Tensor | None) -> Tensor:
    """The numbers [P, G, S, D] that codes stand for; what is no code as it is."""
    if scales is None:
        return part
    if scales.dim() == part.dim():
        codes, step, least = _four_bits(part, scales)
        return codes * step + least
    return part.float().double() * scales.double()[..., None]


def _sizes(part: Tensor, scales: Tensor | None, lost: float = 0.0) -> Tensor:
    """The sizes of what a kernel adds up for each number; of 4 bits two parts.

    Args:
        part, scales: as the op has them.
        lost: of a scale.
    """
    if scales is not None and scales.dim() == part.dim():
        codes, step, least = _four_bits(part, scales)
        return codes * (step.abs() + lost) + least.abs()
    return _numbers(part, None if scales is None else scales.double() + lost).abs()


def _four_bits(part: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [P, G, S, D], and each one's step and least."""
    width = 2 * part.shape[-1]
    step, least = (of_rows(each.double(), width) for each in split_scales(scales))
    return torch.cat((part & 15, part >> 4), -1).double(), step, least


def _found(part: Tensor, blocks: Tensor, seen: Tensor) -> Tensor:
    """[B, N, G, D] of the positions that some query sees, 0 of others: they may be NaN."""
    present = seen.any(-2)[:, :, None, None]
    return gather(part, blocks).double().where(present, torch.zeros((), dtype=torch.float64))


def _of_groups(q: Tensor, keys: Tensor) -> Tensor:
    """q [B, Q, H, D] as [B, Q, G, H/G, D]."""
    groups = keys.shape[1]
    heads = q.shape[2] // max(groups, 1)
    return q.double().reshape(*q.shape[:2], groups, heads, q.shape[3])


def _shares(
    q: Tensor,
    keys: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
) -> tuple[Tensor, Tensor]:
    """p [B, G, H/G, Q, N], and which positions each query sees, bool [B, Q, N]."""
    seen = see(keys, blocks, lengths, q.shape[1], window)
    k = _found(keys, blocks, seen)
    score = torch.einsum("bqgrd,bngd->bgrqn", _of_groups(q, keys), k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    share = score.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
    return share.where(seen[:, None, None].any(-1, keepdim=True), 0.0), seen
