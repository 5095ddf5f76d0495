"""A planted fault; FAULT says which."""

import math

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
# written as a right one
FAULT = "A query that sees a key of NaN gives 0, as one that sees no position."
CAUGHT_BY = "strided"
DEVICE = "any"
__all__ = ["forward"]


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales,
            value_scales, scale, window, soft_cap,
        )  # fmt: skip
    batch, new, heads, _ = q.shape
    held, groups, block, _ = keys.shape
    y = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    places, ends = blocks.tolist(), lengths.tolist()
    for b in range(batch if y.numel() else 0):
        split = q[b].double().unflatten(1, (groups, heads // groups))
        top = torch.full((*split.shape[:-1], 1), -math.inf, dtype=torch.float64, device=q.device)
        total, mixed = torch.zeros_like(top), torch.zeros_like(split)
        at = torch.arange(ends[b] - new, ends[b], device=q.device)[:, None, None, None]
        for n in range(max(0, min(ends[b], len(places[b]) * block))):
            place, row = places[b][n // block], n % block
            if not 0 <= place < held:
                continue
            sees = n <= at
            if window:
                sees = sees & (n > at - window)
            if not bool(sees.any()):
                continue
            k, v = keys[place, :, row].float().double(), values[place, :, row].float().double()
            if key_scales is not None and value_scales is not None:
                k = k * key_scales[place, :, row, None].double()
                v = v * value_scales[place, :, row, None].double()
            score = torch.einsum("qgrd,gd->qgr", split, k)[..., None] * scale
            if soft_cap:
                score = soft_cap * torch.tanh(score / soft_cap)
            higher = torch.maximum(top, score)
            kept, share = (top - higher).exp(), (score - higher).exp()
            total = torch.where(sees, total * kept + share, total)
            mixed = torch.where(sees, mixed * kept + share * v[:, None], mixed)
            top = torch.where(sees, higher, top)
        y[b] = torch.where(total > 0, mixed / total, 0.0).flatten(1, 2)
    return y.to(q.dtype)
