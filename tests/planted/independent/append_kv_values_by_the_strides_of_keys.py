"""append_kv in plain torch, with a fault; written blind.

keys and values have one shape, so one set of strides is read, that of keys. A cache whose values
lie in another order than its keys (values with positions last, or a slice of something wider) gets
its new values at wrong places, or an error where the places lie outside.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
FAULT = (
    "New values are written by the strides of keys: wrong where a cache's values lie in another "
    "order than its keys."
)
CAUGHT_BY = "strided"
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
    place = blocks.long().gather(1, at // block)
    some = (known & (place >= 0) & (place < blocks_held)).nonzero(as_tuple=True)
    to = place[some], slice(None), (at % block)[some]
    strides = keys.stride()
    _write(keys, strides, key_scales, to, k[some])
    _write(values, strides, value_scales, to, heads[:, :, count + groups :][some])
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _write(
    part: Tensor, strides: tuple[int, ...], scales: Tensor | None, to: tuple[Any, ...], new: Tensor
) -> None:
    if scales is None:
        part.as_strided(part.shape, strides)[to] = new.to(part.dtype)
        return
    codes, found, _ = quantize(new, element_of(part.dtype))
    part.view(torch.uint8).as_strided(part.shape, strides)[to] = codes.view(torch.uint8)
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
