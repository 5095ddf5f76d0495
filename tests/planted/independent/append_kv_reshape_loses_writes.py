"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
FAULT = (
    "New rows are written into keys.reshape(-1, D): a copy where the cache is no contiguous "
    "[P, G, S, D] (a view of [P, S, G, D], or one half of a joint cache whose strides do not "
    "merge), so in place nothing is written."
)
DEVICE = "any"
CAUGHT_BY = "forward"
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
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            qkv, cos, sin, keys, values, blocks,
            lengths, key_scales, value_scales, query_norm, key_norm, eps, key_offset,
        )  # fmt: skip
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
    group = torch.arange(groups, device=qkv.device)
    at = (place[some][:, None] * groups + group) * block + row[some][:, None]
    _write(keys, key_scales, at, k[some])
    _write(values, value_scales, at, heads[:, :, count + groups :][some])
    return torch.where(known[..., None, None], q, 0.0).to(qkv.dtype)


def _write(part: Tensor, scales: Tensor | None, at: Tensor, new: Tensor) -> None:
    """New rows [N, G, D] into keys or values, as they are or as codes."""
    if scales is None:
        part.reshape(-1, part.shape[-1])[at] = new.to(part.dtype)
        return
    codes, scale, _ = quantize(new, element_of(part.dtype))
    # of 8-bit floats torch writes no places that are listed
    part.view(torch.uint8).reshape(-1, part.shape[-1])[at] = codes.view(torch.uint8)
    scales.reshape(-1)[at] = scale


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, -1)
