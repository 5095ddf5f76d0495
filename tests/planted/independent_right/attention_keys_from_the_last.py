"""attention in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "attention"
UNUSUAL = (
    "Pieces of 48 positions from the last to the first, with a running maximum and sum in float64; "
    "what a query sees is computed from indices, piece by piece."
)
DEVICE = "any"

_PIECE = 48


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
    batch, new, heads, width = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if not y.numel() or not length:
        return y
    split = q.reshape(batch, new, groups, heads // groups, width).permute(0, 2, 3, 1, 4).double()
    shape = (batch, groups, heads // groups, new, 1)
    top = torch.full(shape, -torch.inf, dtype=torch.float64, device=q.device)
    total = torch.zeros_like(top)
    mixed = torch.zeros((*shape[:-1], width), dtype=torch.float64, device=q.device)
    query = torch.arange(length - new, length, device=q.device)[:, None]
    sees = torch.zeros((new, 1), dtype=torch.bool, device=q.device)
    for first in reversed(range(0, length, _PIECE)):
        some = slice(first, min(first + _PIECE, length))
        at = torch.arange(some.start, some.stop, device=q.device)
        seen = torch.ones((new, len(at)), dtype=torch.bool, device=q.device)
        if causal:
            seen = at <= query
        if window:
            seen = seen & (query - at < window)
        sees = sees | seen.any(-1, keepdim=True)
        score = split @ keys[:, :, None, some].double().transpose(-1, -2) * scale
        if soft_cap:
            score = soft_cap * torch.tanh(score / soft_cap)
        score = score.masked_fill(~seen, -torch.inf)
        above = torch.maximum(top, score.amax(-1, keepdim=True))
        # -inf less -inf would be NaN
        shift = torch.where(above == -torch.inf, torch.zeros_like(above), above)
        part = (score - shift).exp()
        factor = torch.where(top == -torch.inf, torch.zeros_like(top), (top - shift).exp())
        total = total * factor + part.sum(-1, keepdim=True)
        mixed = mixed * factor + part @ values[:, :, None, some].double()
        top = above
    found = torch.where(sees, mixed / total, 0.0)
    y.copy_(found.permute(0, 3, 1, 2, 4).reshape(q.shape))
    return y
