"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
UNUSUAL = (
    "Right, but unusual: loops over sequences, queries and heads gather just the positions "
    "seen, in float64."
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
    if keys.dtype == torch.uint8:
        # rows in 4 bits, as the op has them
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales,
            value_scales, scale, window, soft_cap,
        )  # fmt: skip
    batch, new, heads, _ = q.shape
    held, groups, block, _ = keys.shape
    y = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    if not y.numel() or not groups:
        return y.to(q.dtype)
    limit = blocks.shape[1] * block
    for b in range(batch):
        table, length = blocks[b].tolist(), int(lengths[b])
        for i in range(new):
            at = length - new + i
            first = max(0, at - window + 1) if window else 0
            seen = [n for n in range(first, min(at + 1, limit)) if 0 <= table[n // block] < held]
            if not seen:
                continue
            place = torch.tensor([table[n // block] for n in seen], device=q.device)
            row = torch.tensor([n % block for n in seen], device=q.device)
            k = _numbers(keys, key_scales, place, row)
            v = _numbers(values, value_scales, place, row)
            for h in range(heads):
                g = h // (heads // groups)
                score = k[:, g] @ q[b, i, h].double() * scale
                if soft_cap:
                    score = soft_cap * torch.tanh(score / soft_cap)
                part = torch.exp(score - torch.logsumexp(score, 0))
                y[b, i, h] = part @ v[:, g]
    return y.to(q.dtype)


def _numbers(part: Tensor, scales: Tensor | None, place: Tensor, row: Tensor) -> Tensor:
    """[seen, G, D] in float64."""
    # 8-bit floats are gathered as bytes
    raw = part.view(torch.uint8) if part.dtype.itemsize == 1 else part
    found = raw[place, :, row]
    found = found.view(part.dtype) if part.dtype.itemsize == 1 else found
    found = found.float().double()
    return found if scales is None else found * scales[place, :, row].double()[..., None]
