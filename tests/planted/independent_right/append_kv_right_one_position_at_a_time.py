"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import is_turned, kept_as, quantize, width_of
from tercet.packed_weight.int4_rows import turn

OP = "append_kv"
FAULT = "None: one position after the other, the last first, in float64 until it is written."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward"]


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_."""
    batch, new, _ = qkv.shape
    (held, groups, block, _), width = keys.shape, width_of(keys)
    count = qkv.shape[2] // width - 2 * groups
    result = torch.zeros((batch, new, count, width), dtype=qkv.dtype, device=qkv.device)
    for b in reversed(range(batch)):
        for i in reversed(range(new)):
            position = int(lengths[b]) - new + i
            if not 0 <= position < min(blocks.shape[1] * block, cos.shape[0]):
                continue
            heads = qkv[b, i].reshape(count + 2 * groups, width).double()
            c, s = cos[position].double(), sin[position].double()
            q = _turned(heads[:count], query_norm, eps, c, s)
            k = _turned(heads[count : count + groups], key_norm, eps, c, s)
            if is_turned(keys.dtype):
                q, k = turn(q), turn(k)
                k = k if key_offset is None else k - key_offset.double()
            result[b, i] = q.to(qkv.dtype)
            place, row = int(blocks[b, position // block]), position % block
            if 0 <= place < held:
                _write(keys, key_scales, place, row, k)
                _write(values, value_scales, place, row, heads[count + groups :])
    return result


def _turned(x: Tensor, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    if weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    half = len(cos)
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _write(part: Tensor, scales: Tensor | None, place: int, row: int, new: Tensor) -> None:
    """new [G, D] as row `row` of block `place`."""
    kept = kept_as(part.dtype)
    if kept is None or scales is None:
        part[place, :, row].copy_(new)
        return
    codes, found = quantize(new.float(), kept)
    part.view(torch.uint8)[place, :, row].copy_(codes.view(torch.uint8))
    scales[place, :, row].copy_(found)
