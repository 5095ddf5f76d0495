"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.append_kv import torch_path
from tercet.packed_weight.row_codes import element_of, quantize

OP = "append_kv"
UNUSUAL = (
    "One new position at a time, rotated in float64 by a matrix of all pairs, and written "
    "head by head."
)
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
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            qkv, cos, sin, keys, values, blocks,
            lengths, key_scales, value_scales, query_norm, key_norm, eps, key_offset,
        )  # fmt: skip
    batch, new, total = qkv.shape
    held, groups, block, width = keys.shape
    count = total // width - 2 * groups
    q = torch.zeros((batch, new, count, width), dtype=qkv.dtype, device=qkv.device)
    most = min(blocks.shape[1] * block, cos.shape[0])
    for b, length in enumerate(lengths.tolist()):
        for i in range(new):
            n = length - new + i
            if not 0 <= n < most:
                continue
            heads = qkv[b, i].reshape(-1, width).double()
            c, s = cos[n].double(), sin[n].double()
            q[b, i] = _turn(_normalize(heads[:count], query_norm, eps), c, s).to(qkv.dtype)
            place, row = int(blocks[b, n // block]), n % block
            if not 0 <= place < held:
                continue
            k = _turn(_normalize(heads[count : count + groups], key_norm, eps), c, s)
            for g in range(groups):
                _write(keys, key_scales, (place, g, row), k[g])
                _write(values, value_scales, (place, g, row), heads[count + groups + g])
    return q


def _write(part: Tensor, scales: Tensor | None, at: tuple[int, int, int], new: Tensor) -> None:
    if scales is None:
        part[at].copy_(new.to(part.dtype))
        return
    codes, scale, _ = quantize(new[None].float(), element_of(part.dtype))
    part[at].view(torch.uint8).copy_(codes[0].view(torch.uint8))
    scales[at] = scale[0]


def _normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight.double()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows x [.., D] turned: pairs as [.., 2, R], each times a matrix of its own."""
    half = len(cos)
    pairs = x[:, : 2 * half].reshape(len(x), 2, half)
    matrix = torch.stack((torch.stack((cos, -sin)), torch.stack((sin, cos))))
    turned = (matrix[None] * pairs[:, None]).sum(2)
    return torch.cat((turned.reshape(len(x), 2 * half), x[:, 2 * half :]), -1)
