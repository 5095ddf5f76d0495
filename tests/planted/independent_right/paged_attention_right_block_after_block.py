"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import numbers

OP = "paged_attention"
FAULT = "None: online softmax in float64, one sequence and one block at a time, the last first."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward"]


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    batch, new, heads, width = q.shape
    held, groups, size, _ = keys.shape
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not size:
        return y
    for b in range(batch):
        query = int(lengths[b]) - new + torch.arange(new)
        one = q[b].double().reshape(new, groups, heads // groups, width)
        top = torch.full((groups, heads // groups, new, 1), -torch.inf, dtype=torch.float64)
        total, mixed = torch.zeros_like(top), torch.zeros((*top.shape[:-1], width)).double()
        for t in reversed(range(blocks.shape[1])):
            at = int(blocks[b, t])
            distance = query[:, None] - (t * size + torch.arange(size))
            seen = (distance >= 0) & ((distance < window) if window else (distance == distance))
            if not 0 <= at < held or not bool(seen.any()):
                continue
            k, v = (
                numbers(part[at], None if scales is None else scales[at]).double()
                for part, scales in ((keys, key_scales), (values, value_scales))
            )
            some = seen.any(0)[None, :, None]
            k, v = torch.where(some, k, 0.0), torch.where(some, v, 0.0)
            score = torch.einsum("qgrd,gnd->grqn", one, k) * scale
            score = soft_cap * torch.tanh(score / soft_cap) if soft_cap else score
            score = score.masked_fill(~seen, -torch.inf)
            higher = torch.maximum(top, score.amax(-1, keepdim=True))
            # of a query that has seen nothing yet
            base = torch.where(higher == -torch.inf, 0.0, higher)
            part, shrunk = (score - base).exp(), (top - base).exp()
            total = total * shrunk + part.sum(-1, keepdim=True)
            mixed = mixed * shrunk + torch.einsum("grqn,gnd->grqd", part, v)
            top = higher
        found = torch.where(total == 0, 0.0, mixed / total)
        y[b] = found.permute(2, 0, 1, 3).reshape(new, heads, width).to(q.dtype)
    return y
