"""append_kv in plain torch: one new position after the other, the last first, in float64."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
UNUSUAL = (
    "A loop over sequences and new positions, last first, norms and rotates in float64 and "
    "writes each head row into its block by itself; positions that are none are never "
    "computed."
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
    ends = lengths.tolist()
    for b in reversed(range(batch)):
        for i in reversed(range(new)):
            position = ends[b] - new + i
            if not 0 <= position < most:
                continue
            heads = qkv[b, i].reshape(count + 2 * groups, width)
            angles = cos[position].double(), sin[position].double()
            q[b, i] = _turn(_normalize(heads[:count], query_norm, eps), *angles).to(qkv.dtype)
            place, row = int(blocks[b, position // block]), position % block
            if not 0 <= place < held:
                continue
            k = _turn(_normalize(heads[count : count + groups], key_norm, eps), *angles)
            _write(keys, key_scales, place, row, k)
            _write(values, value_scales, place, row, heads[count + groups :])
    return q


def _write(part: Tensor, scales: Tensor | None, place: int, row: int, new: Tensor) -> None:
    """New [G, D] into keys or values, as they are or as codes."""
    if scales is None:
        part[place, :, row] = new.to(part.dtype)
        return
    codes, scale, _ = quantize(new.float(), element_of(part.dtype))
    part.view(torch.uint8)[place, :, row] = codes.view(torch.uint8)
    scales[place, :, row] = scale


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.double()
    if weight is None:
        return wide
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    y = x.clone()
    y[:, :half] = x[:, :half] * cos - x[:, half : 2 * half] * sin
    y[:, half : 2 * half] = x[:, half : 2 * half] * cos + x[:, :half] * sin
    return y
