"""A planted fault; FAULT says which."""

from typing import Any

import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import is_turned, kept_as, quantize, width_of
from tercet.packed_weight.int4_rows import turn

OP = "append_kv"
FAULT = (
    "Whole blocks are written as blocks where Q is a multiple of S and the first sequence begins "
    "at a block's begin; that the others do is not asked, so rows of one that does not go to the "
    "rows of an aligned one."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:
    """As op.append_kv_."""
    batch, new, _ = qkv.shape
    (blocks_held, groups, block, _), width = keys.shape, width_of(keys)
    count = qkv.shape[2] // width - 2 * groups
    heads = qkv.reshape(batch, new, count + 2 * groups, width)
    position = lengths.long()[:, None] + torch.arange(-new, 0, device=qkv.device)
    most = min(blocks.shape[1] * block, cos.shape[0])
    known = (position >= 0) & (position < most)
    if not known.numel() or not most:
        return qkv.new_zeros(batch, new, count, width)
    at = torch.where(known, position, 0)
    angles = cos[at][:, :, None].float(), sin[at][:, :, None].float()
    q = _turn(_normalize(heads[:, :, :count].float(), query_norm, eps), *angles)
    k = _turn(_normalize(heads[:, :, count : count + groups].float(), key_norm, eps), *angles)
    if is_turned(keys.dtype):
        q, k = turn(q), turn(k)
        k = k if key_offset is None else k - key_offset
    place, row = blocks.long().gather(1, at // block), at % block
    if new % block == 0 and int(lengths[0]) % block == 0:
        # new positions are whole blocks: one entry of the table each, rows in order
        fresh = torch.arange(new, device=qkv.device)
        begin = (lengths.long()[:, None] - new) // block
        entry = (begin + fresh // block).clamp(0, blocks.shape[1] - 1)
        place, row = blocks.long().gather(1, entry), (fresh % block).expand(batch, new)
    some = (known & (place >= 0) & (place < blocks_held)).nonzero(as_tuple=True)
    to = place[some], slice(None), row[some]
    _write(keys, key_scales, to, k[some])
    _write(values, value_scales, to, heads[:, :, count + groups :][some])
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _write(part: Tensor, scales: Tensor | None, at: tuple[Any, ...], new: Tensor) -> None:
    kept = kept_as(part.dtype)
    if kept is None or scales is None:
        part[at] = new.to(part.dtype)
        return
    codes, found = quantize(new, kept)
    part.view(torch.uint8)[at] = codes.view(torch.uint8)
    scales[at] = found


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
