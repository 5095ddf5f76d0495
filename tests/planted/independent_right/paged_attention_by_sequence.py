"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = (
    "One sequence after the other, only the positions that any query sees gathered, double "
    "precision, one division at the end."
)
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
    count, groups, size, _ = keys.shape
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not count * size * blocks.shape[1]:
        return y
    for b in range(batch):
        length = int(lengths[b])
        oldest = max(0, length - new - window + 1) if window else 0
        n = torch.arange(oldest, max(oldest, min(length, blocks.shape[1] * size)), device=q.device)
        block = blocks[b][n // size].long()
        held = (block >= 0) & (block < count)
        n, block = n[held], block[held]
        if not len(n):
            continue
        k, v = keys[block, :, n % size].double(), values[block, :, n % size].double()
        if key_scales is not None and value_scales is not None:
            k = k * key_scales[block, :, n % size].double()[..., None]
            v = v * value_scales[block, :, n % size].double()[..., None]
        at = torch.arange(length - new, length, device=q.device)[:, None]
        seen = (n <= at) & (n > at - window) if window else n <= at
        some = seen.any(0)
        k, v, seen = k[some], v[some], seen[:, some]
        if not seen.numel() or not seen.any():
            continue
        split = q[b].double().unflatten(1, (groups, heads // groups))
        score = torch.einsum("qgrd,ngd->grqn", split, k) * scale
        if soft_cap:
            score = torch.tanh(score / soft_cap) * soft_cap
        score = score.masked_fill(~seen, float("-inf"))
        top = score.amax(-1, keepdim=True)
        part = torch.where(seen, (score - top).exp(), 0.0)
        mixed = torch.einsum("grqn,ngd->grqd", part, v)
        mixed = mixed / torch.where(seen.any(-1)[:, None], part.sum(-1, keepdim=True), 1.0)
        y[b] = mixed.permute(2, 0, 1, 3).reshape(new, heads, width).to(y.dtype)
    return y
