"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
UNUSUAL = (
    "A Python loop over sequences, new positions and heads, keys and queries in float64 until "
    "the one rounding, written through narrow views."
)
DEVICE = "any"
__all__ = ["forward"]


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_."""
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            qkv, cos, sin, keys, values, blocks,
            lengths, key_scales, value_scales, query_norm, key_norm, eps, key_offset,
        )  # fmt: skip
    batch, new, total = qkv.shape
    count, groups, block, width = keys.shape
    heads = total // width - 2 * groups
    q = torch.zeros((batch, new, heads, width), dtype=qkv.dtype, device=qkv.device)
    most = min(blocks.shape[1] * block, len(cos))
    for b in range(batch):
        for i in range(new):
            at = int(lengths[b]) - new + i
            if not 0 <= at < most:
                continue
            rows = qkv[b, i].reshape(heads + 2 * groups, width)
            c, s = cos[at].double(), sin[at].double()
            for head in range(heads):
                q[b, i, head] = _turned(rows[head], query_norm, eps, c, s).float().to(q.dtype)
            place = int(blocks[b, at // block])
            if not 0 <= place < count:
                continue
            for group in range(groups):
                key = _turned(rows[heads + group], key_norm, eps, c, s).float()
                value = rows[heads + groups + group]
                where = place, group, at % block
                _write(keys, key_scales, where, key)
                _write(values, value_scales, where, value)
    return q


def _turned(x: Tensor, norm: Tensor | None, eps: float, c: Tensor, s: Tensor) -> Tensor:
    x = x.double()
    if norm is not None:
        x = x / (torch.dot(x, x) / len(x) + eps).sqrt() * norm.double()
    half = len(c)
    first, second = x[:half], x[half : 2 * half]
    return torch.cat((first * c - second * s, second * c + first * s, x[2 * half :]))


def _write(part: Tensor, scales: Tensor | None, at: tuple[int, int, int], new: Tensor) -> None:
    place, group, row = at
    if scales is None:
        part[place, group].narrow(0, row, 1).copy_(new.to(part.dtype)[None])
        return
    codes, scale, _ = quantize(new, element_of(part.dtype))
    part[place, group].narrow(0, row, 1).copy_(codes[None])
    scales[place, group, row] = scale
