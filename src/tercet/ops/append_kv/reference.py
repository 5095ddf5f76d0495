"""The meaning of append_kv, in float64.

Keys that become codes are off by a few roundings of float32, so one that lies that near to a
boundary between two codes may get either; values are exact, but for the rounding of a quotient.
`magnitude` is the distance between the two codes there and 0 everywhere else.
"""

import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import is_turned, width_of
from tercet.packed_weight.exact_int4_rows import room_of_rows, round_rows
from tercet.packed_weight.exact_row_codes import LIMITS, ratio_to, room_of, round_ratio, scale_of
from tercet.packed_weight.int4_rows import block, turn
from tercet.packed_weight.row_codes import element_of

# of float32 results: a norm, two products, their sum
RELATIVE = 2e-6
# of the same, of results that are rounded to 16 bits at the end
INNER = 4e-6
_QUOTIENT = 2.0**-24

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def reference(
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
) -> Results:
    """(q, keys, values, key_scales, value_scales): q normalized and rotated, the blocks with the
    new positions in them."""
    q, k, v = _split(qkv.double(), keys)
    q, k = _normalize(q, query_norm, eps), _normalize(k, key_norm, eps)
    c, s, known = _angles(cos, sin, blocks, keys.shape[2], lengths, qkv.shape[1])
    q = _turn(q, c, s, -s).masked_fill(~known[..., None, None], 0.0)
    k = _turn(k, c, s, -s)
    if is_turned(keys.dtype):
        q, k = turn(q), turn(k)
    if key_offset is not None:
        k = k - key_offset.double()
    k, of_keys = _coded(k, keys, key_scales)
    v, of_values = _coded(v, values, value_scales)
    where = blocks, lengths, known
    return (
        q,
        _write(_double(keys), k, *where),
        _write(_double(values), v, *where),
        _write(_double(key_scales), of_keys, *where),
        _write(_double(value_scales), of_values, *where),
    )


def magnitude(
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
) -> Results:
    """The same with absolute values and sums in place of differences; of codes what they may be
    off by."""
    q, k, v = _split(qkv.double(), keys)
    q, k = _normalize(q, query_norm, eps), _normalize(k, key_norm, eps)
    c, s, known = _angles(cos, sin, blocks, keys.shape[2], lengths, qkv.shape[1])
    exact = _turn(k, c, s, -s)
    c, s = c.abs(), s.abs()
    q = _turn(q.abs(), c, s, s).masked_fill(~known[..., None, None], 0.0)
    k = _turn(k.abs(), c, s, s)
    if is_turned(keys.dtype):
        exact, q, k = turn(exact), _spread(q), _spread(k)
    if key_offset is not None:
        exact, k = exact - key_offset.double(), k + key_offset.double().abs()
    held, held_values = _double(keys).abs(), _double(values).abs()
    of_keys = of_values = None
    if key_scales is not None:
        k, of_keys = _room(exact, k * RELATIVE, keys.dtype)
        # `int4_rows` counts its quotient's rounding by itself
        quotient = 0.0 if is_turned(values.dtype) else _QUOTIENT
        v, of_values = _room(v, v.abs() * quotient, values.dtype)
        # codes that stay are what they were
        held, held_values = torch.zeros_like(held), torch.zeros_like(held_values)
    where = blocks, lengths, known
    return (
        q,
        _write(held, k, *where),
        _write(held_values, v.abs(), *where),
        _write(_double(key_scales), of_keys, *where),
        _write(_double(value_scales), of_values, *where),
    )


def _double(part: Tensor | None) -> Tensor:
    """Codes and numbers in float64; nothing where there is none."""
    return torch.empty(0).double() if part is None else part.float().double()


def _coded(new: Tensor, part: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """New rows [B, Q, G, D], or their codes and scales [B, Q, G], of 4 bits [B, Q, G, 2 C]."""
    if scales is None:
        return new, None
    if is_turned(part.dtype):
        return round_rows(new)
    element = element_of(part.dtype)
    scale = scale_of(new, element)
    return round_ratio(ratio_to(new, scale), element), scale.squeeze(-1)


def _room(y: Tensor, error: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What codes and scales of rows y [.., D] that are off by `error` may be off by.

    Scales over RELATIVE; of 4 bits over what a bfloat16 result may be off by.
    """
    if is_turned(dtype):
        room = room_of_rows(y, error)
        return room.codes, room.scales / INNER
    element = element_of(dtype)
    # subnormal float32 numbers are a fixed distance apart
    error = error + 2.0**-148
    scale = scale_of(y, element)
    most = error.amax(-1, keepdim=True) / LIMITS[element] + 2.0**-149
    return room_of(y, error, scale, element, most), (scale + most / RELATIVE).squeeze(-1)


def _split(qkv: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, Q, (H + 2 G) D] to heads [B, Q, H or G, D]."""
    groups, width = keys.shape[1], width_of(keys)
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


def _spread(x: Tensor) -> Tensor:
    """`turn` of what x [.., D], at least 0, may be: every sign alike."""
    size, half = block(x.shape[-1]), x.shape[-1] // 2
    both = (x[..., :half] + x[..., half:]).reshape(*x.shape[:-1], half // size, size)
    sums = both.sum(-1, keepdim=True).expand_as(both).flatten(-2) * (2 * size) ** -0.5
    return torch.cat((sums, sums), -1)


def _write(
    cache: Tensor, new: Tensor | None, blocks: Tensor, lengths: Tensor, known: Tensor
) -> Tensor:
    """The cache [P, G, S, ..] with new [B, Q, G, ..] at the positions of each sequence."""
    if new is None:
        return cache
    cache, block = cache.clone(), cache.shape[2]
    for b, row in enumerate(new):
        for i, heads in enumerate(row):
            position = int(lengths[b]) - new.shape[1] + i
            if known[b, i]:
                place = int(blocks[b, position // block])
                if 0 <= place < cache.shape[0]:
                    cache[place, :, position % block] = heads
    return cache
