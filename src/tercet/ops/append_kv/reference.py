"""The meaning of append_kv, in float64."""

import torch
from torch import Tensor


def reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, keys, values): q normalized and rotated, the blocks with the new positions in them."""
    q, k, v = _split(qkv.double(), keys)
    q, k = _normalize(q, query_norm, eps), _normalize(k, key_norm, eps)
    c, s, known = _angles(cos, sin, blocks, keys.shape[2], lengths, qkv.shape[1])
    q = _turn(q, c, s, -s).masked_fill(~known[..., None, None], 0.0)
    k = _turn(k, c, s, -s)
    return (
        q,
        _write(keys.double(), k, blocks, lengths, known),
        _write(values.double(), v, blocks, lengths, known),
    )


def magnitude(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with absolute values and sums in place of differences."""
    q, k, v = _split(qkv.double(), keys)
    q, k = _normalize(q, query_norm, eps).abs(), _normalize(k, key_norm, eps).abs()
    c, s, known = _angles(cos.abs(), sin.abs(), blocks, keys.shape[2], lengths, qkv.shape[1])
    q = _turn(q, c, s, s).masked_fill(~known[..., None, None], 0.0)
    k = _turn(k, c, s, s)
    return (
        q,
        _write(keys.double().abs(), k, blocks, lengths, known),
        _write(values.double().abs(), v.abs(), blocks, lengths, known),
    )


def _split(qkv: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, Q, (H + 2 G) D] to heads [B, Q, H or G, D]."""
    groups, width = keys.shape[1], keys.shape[3]
    count = qkv.shape[-1] // width - 2 * groups
    heads = qkv.reshape(*qkv.shape[:2], count + 2 * groups, width)
    return heads[:, :, :count], heads[:, :, count : count + groups], heads[:, :, count + groups :]


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def _angles(
    cos: Tensor, sin: Tensor, blocks: Tensor, block: int, lengths: Tensor, new: int
) -> tuple[Tensor, Tensor, Tensor]:
    """cos and sin [B, Q, 1, R] of each new position, and whether it is one."""
    position = lengths.long()[:, None] + torch.arange(-new, 0)
    known = (position >= 0) & (position < min(blocks.shape[1] * block, cos.shape[0]))
    at = torch.where(known, position, 0)
    c, s = (_rows(part.double(), at).unsqueeze(2) for part in (cos, sin))
    return c, s, known


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """table[at], and zeros where the table has no rows at all."""
    return table[at] if table.shape[0] else table.new_zeros((*at.shape, table.shape[1]))


def _turn(x: Tensor, cos: Tensor, to_second: Tensor, to_first: Tensor) -> Tensor:
    """Pairs are columns (i, i + R); the rest stays."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos + second * to_first, second * cos + first * to_second, rest), -1)


def _write(cache: Tensor, new: Tensor, blocks: Tensor, lengths: Tensor, known: Tensor) -> Tensor:
    """The cache [P, G, S, D] with new [B, Q, G, D] at the positions of each sequence."""
    cache, block = cache.clone(), cache.shape[2]
    for b, row in enumerate(new):
        for i, heads in enumerate(row):
            position = int(lengths[b]) - new.shape[1] + i
            if known[b, i]:
                place = int(blocks[b, position // block])
                if 0 <= place < cache.shape[0]:
                    cache[place, :, position % block] = heads
    return cache
