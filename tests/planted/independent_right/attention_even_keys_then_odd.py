"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.attention.visible import see

OP = "attention"
UNUSUAL = (
    "Right, but unusual: one query head at a time in float64; the keys at even positions and "
    "those at odd ones have softmaxes of their own, which are joined by their sums."
)
DEVICE = "any"

__all__ = ["forward"]


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.attention."""
    _, new, heads, _ = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not y.numel() or not length:
        return y
    seen = see(new, length, causal, window, q.device)
    for head in range(heads):
        group = head // (heads // groups)
        tops, sums, mixes = list[Tensor](), list[Tensor](), list[Tensor]()
        for part in (slice(0, None, 2), slice(1, None, 2)):
            k, v = (x[:, group, part].double() for x in (keys, values))
            if not k.shape[1]:
                continue
            score = q[:, :, head].double() @ k.mT * scale
            if soft_cap:
                score = soft_cap * torch.tanh(score / soft_cap)
            score = score.masked_fill(~seen[:, part], -torch.inf)
            top = score.amax(-1, keepdim=True)
            share = (score - torch.where(top == -torch.inf, 0.0, top)).exp()
            tops.append(top)
            sums.append(share.sum(-1, keepdim=True))
            mixes.append(share @ v)
        # [2, B, T, 1]
        top = torch.stack(tops)
        highest = top.amax(0)
        factor = (top - torch.where(highest == -torch.inf, 0.0, highest)).exp()
        total = (torch.stack(sums) * factor).sum(0)
        mixed = (torch.stack(mixes) * factor).sum(0)
        y[:, :, head] = (mixed / torch.where(total == 0, 1.0, total)).to(q.dtype)
    return y
