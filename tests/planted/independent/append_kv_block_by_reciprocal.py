"""append_kv in plain torch, with a fault; written blind.

The block of a position is position * (1 / S) in float32, rounded down. Where S is a power of two,
and for most others, that is right. Of S = 41, 47, 55, 61 and some more, 1 / S is rounded down, and
position S, 2 S, .. comes to lie in the block before its own: the first row of the wrong block is
overwritten. A user hits it with blocks of such a size as soon as a second block begins.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
FAULT = (
    "A position is divided by the block's size as a product with the float32 reciprocal: of sizes "
    "as 41, 47, 55 or 61 the first position of a block is written to the block before."
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
    if keys.dtype == torch.uint8:
        return torch_path.forward(
            qkv, cos, sin, keys, values, blocks,
            lengths, key_scales, value_scales, query_norm, key_norm, eps, key_offset,
        )  # fmt: skip
    batch, new, _ = qkv.shape
    blocks_held, groups, block, width = keys.shape
    count = qkv.shape[2] // width - 2 * groups
    most = min(blocks.shape[1] * block, cos.shape[0])
    heads = qkv.reshape(batch, new, count + 2 * groups, width)
    position = lengths.long()[:, None] + torch.arange(-new, 0, device=qkv.device)
    known = (position >= 0) & (position < most)
    if not known.numel() or not most:
        return qkv.new_zeros(batch, new, count, width)
    at = torch.where(known, position, 0)
    angles = cos[at][:, :, None].float(), sin[at][:, :, None].float()
    q = _turn(_normalize(heads[:, :, :count].float(), query_norm, eps), *angles)
    k = _turn(_normalize(heads[:, :, count : count + groups].float(), key_norm, eps), *angles)
    entry = (at.to(torch.float32) * (1.0 / block)).floor().long()
    place = blocks.long().gather(1, entry)
    some = (known & (place >= 0) & (place < blocks_held)).nonzero(as_tuple=True)
    to = place[some], slice(None), (at % block)[some]
    _write(keys, key_scales, to, k[some])
    _write(values, value_scales, to, heads[:, :, count + groups :][some])
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _write(part: Tensor, scales: Tensor | None, to: tuple[Any, ...], new: Tensor) -> None:
    if scales is None:
        part[to] = new.to(part.dtype)
        return
    codes, found, _ = quantize(new, element_of(part.dtype))
    part.view(torch.uint8)[to] = codes.view(torch.uint8)
    scales[to] = found


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
