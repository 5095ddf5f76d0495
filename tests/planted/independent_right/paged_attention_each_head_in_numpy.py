"""A right but unusual kernel; UNUSUAL says how."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from tercet.packed_weight.cached_rows import numbers

OP = "paged_attention"
UNUSUAL = (
    "Right, but unusual: numpy in float64, a query of a head at a time over a list of its "
    "positions that the table is walked for in Python."
)
DEVICE = "any"

__all__ = ["forward"]


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.paged_attention."""
    batch, new, heads, _ = q.shape
    held, groups, block = keys.shape[0], keys.shape[1], keys.shape[2]
    y = torch.zeros(q.shape, dtype=torch.float64)
    if not q.numel() or not held or not block:
        return y.to(q.dtype).to(q.device)
    wide = q.detach().double().cpu().numpy()
    table, ends = cast(list[list[int]], blocks.tolist()), cast(list[int], lengths.tolist())
    k, v = (
        numbers(part, scales).double().cpu().numpy()
        for part, scales in ((keys, key_scales), (values, value_scales))
    )
    out = y.numpy()
    for b in range(batch):
        for i in range(new):
            last = ends[b] - new + i
            first = max(0, last - window + 1) if window else 0
            stop = min(last + 1, len(table[b]) * block)
            named = [
                (table[b][n // block], n % block)
                for n in range(first, stop)
                if 0 <= table[b][n // block] < held
            ]
            if not named:
                continue
            place, row = (np.array(each) for each in zip(*named, strict=True))
            for head in range(heads):
                group = head // (heads // groups)
                with np.errstate(all="ignore"):
                    score = k[place, group, row] @ wide[b, i, head] * scale
                    if soft_cap:
                        score = soft_cap * np.tanh(score / soft_cap)
                    share = np.exp(score - score.max())
                    out[b, i, head] = share @ v[place, group, row] / share.sum()
    return y.to(q.dtype).to(q.device)
