"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = "A loop over sequences and queries that gathers the seen positions alone, in float64."
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
    batch, new, heads, width = q.shape
    count, groups, block = keys.shape[:3]
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel():
        return y
    for b in range(batch):
        table = blocks[b].tolist()
        for i in range(new):
            at = int(lengths[b]) - new + i
            first = max(0, at - window + 1) if window else 0
            places = [
                (table[n // block], n % block)
                for n in range(first, min(at + 1, len(table) * block))
                if 0 <= table[n // block] < count
            ]
            if not places:
                continue
            which, row = (torch.tensor(part, device=q.device) for part in zip(*places, strict=True))
            k, v = (
                _values(part, scales, which, row)
                for part, scales in ((keys, key_scales), (values, value_scales))
            )
            split = q[b, i].double().reshape(groups, heads // groups, width)
            score = torch.einsum("grd,ngd->grn", split, k) * scale
            if soft_cap:
                score = torch.tanh(score / soft_cap) * soft_cap
            share = torch.exp(score - score.amax(-1, keepdim=True))
            share = share / share.sum(-1, keepdim=True)
            y[b, i] = (
                torch.einsum("grn,ngd->grd", share, v).reshape(heads, width).float().to(q.dtype)
            )
    return y


def _values(part: Tensor, scales: Tensor | None, which: Tensor, row: Tensor) -> Tensor:
    """[n, G, D] in float64."""
    held = part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part
    found = held[which, :, row].view(part.dtype).float().double()
    return found if scales is None else found * scales[which, :, row].double()[..., None]
