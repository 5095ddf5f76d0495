"""append_kv in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
UNUSUAL = (
    "Which new position each row of the cache gets is looked up in a table the other way around; "
    "the whole cache is then made anew and copied over the old one. Norm and rotation in float64."
)
DEVICE = "any"


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
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            qkv, cos, sin, keys, values, blocks,
            lengths, key_scales, value_scales, query_norm, key_norm, eps, key_offset,
        )  # fmt: skip
    batch, new, total = qkv.shape
    held, groups, block, width = keys.shape
    count = total // width - 2 * groups
    most = min(blocks.shape[1] * block, cos.shape[0])
    q = torch.zeros((batch, new, count, width), dtype=qkv.dtype, device=qkv.device)
    if not batch * new or not most:
        return q
    heads = qkv.reshape(batch, new, count + 2 * groups, width)
    position = lengths.long()[:, None] + torch.arange(-new, 0, device=qkv.device)
    known = (position >= 0) & (position < most)
    at = torch.where(known, position, 0)
    angles = cos[at][:, :, None].double(), sin[at][:, :, None].double()
    found = _turn(_normalize(heads[:, :, :count], query_norm, eps), *angles)
    q.copy_(torch.where(known[..., None, None], found, 0.0))
    k = _turn(_normalize(heads[:, :, count : count + groups], key_norm, eps), *angles)
    place = blocks.long().gather(1, at // block)
    written = known & (place >= 0) & (place < held)
    source = torch.full((held, block), -1, dtype=torch.int64, device=qkv.device)
    mine = torch.arange(batch * new, device=qkv.device).reshape(batch, new)
    source[place[written], (at % block)[written]] = mine[written]
    _replace(keys, key_scales, source, k.float().reshape(batch * new, groups, width))
    v = heads[:, :, count + groups :].float().reshape(batch * new, groups, width)
    _replace(values, value_scales, source, v)
    return q


def _replace(part: Tensor, scales: Tensor | None, source: Tensor, new: Tensor) -> None:
    """part [P, G, S, D] with the rows of new [B Q, G, D] that source [P, S] names."""
    mine, row = source >= 0, source.clamp(min=0)
    if scales is None:
        fresh = new.to(part.dtype)[row].transpose(1, 2)
        part.copy_(torch.where(mine[:, None, :, None], fresh, part))
        return
    codes, found, _ = quantize(new, element_of(part.dtype))
    held = part.view(torch.uint8)
    fresh = codes.view(torch.uint8)[row].transpose(1, 2)
    held.copy_(torch.where(mine[:, None, :, None], fresh, held))
    scales.copy_(torch.where(mine[:, None], found[row].transpose(1, 2), scales))


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.double()
    if weight is None:
        return wide
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
