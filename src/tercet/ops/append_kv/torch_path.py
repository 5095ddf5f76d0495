"""append_kv in plain torch, on any device, in float32."""

import torch
from torch import Tensor


def forward(
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
) -> Tensor:
    """As op.append_kv_."""
    batch, new, _ = qkv.shape
    blocks_held, groups, block, width = keys.shape
    count = qkv.shape[2] // width - 2 * groups
    heads = qkv.reshape(batch, new, count + 2 * groups, width)
    position = lengths.long()[:, None] + torch.arange(-new, 0, device=qkv.device)
    known = (position >= 0) & (position < min(blocks.shape[1] * block, cos.shape[0]))
    at = torch.where(known, position, 0)
    if not known.numel() or not min(blocks.shape[1] * block, cos.shape[0]):
        return qkv.new_zeros(batch, new, count, width)
    angles = cos[at][:, :, None].float(), sin[at][:, :, None].float()
    q = _turn(_normalize(heads[:, :, :count].float(), query_norm, eps), *angles)
    k = _turn(_normalize(heads[:, :, count : count + groups].float(), key_norm, eps), *angles)
    place = blocks.long().gather(1, at // block)
    known_place = known & (place >= 0) & (place < blocks_held)
    row = at % block
    some = known_place.nonzero(as_tuple=True)
    keys[place[some], :, row[some]] = k.to(keys.dtype)[some]
    values[place[some], :, row[some]] = heads[:, :, count + groups :][some]
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
