"""append_kv in plain torch, with a fault; written blind.

So that nothing waits for the number of written positions, one that is not written puts back what
row 0 of block 0 holds. Where another sequence of the same call writes that very row, and comes
earlier in the batch, its new key and value are lost. A user hits it with a padded batch (a length
of 0, a table that names no block) beside a sequence that begins in block 0.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
FAULT = (
    "A position that is not written puts back the old row 0 of block 0, over what an earlier "
    "sequence of the call wrote there."
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
    if blocks_held:
        place = blocks.long().gather(1, at // block)
        written = known & (place >= 0) & (place < blocks_held)
        to = torch.where(written, place, 0), slice(None), torch.where(written, at % block, 0)
        _write(keys, key_scales, written, to, k)
        _write(values, value_scales, written, to, heads[:, :, count + groups :])
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _write(
    part: Tensor, scales: Tensor | None, written: Tensor, to: tuple[Any, ...], new: Tensor
) -> None:
    if scales is None:
        part[to] = torch.where(written[..., None, None], new.to(part.dtype), part[to])
        return
    codes, found, _ = quantize(new, element_of(part.dtype))
    held = part.view(torch.uint8)
    held[to] = torch.where(written[..., None, None], codes.view(torch.uint8), held[to])
    scales[to] = torch.where(written[..., None], found, scales[to])


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
