"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.attention import torch_path

OP = "attention"
FAULT = (
    "For a single query the key heads are repeated as a whole (repeat, not repeat_interleave): "
    "with G above 1 and below H most heads read another head's keys."
)
CAUGHT_BY = "forward"
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
    batch, new, heads, width = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    if new != 1 or not q.numel() or not length:
        return torch_path.forward(q, keys, values, scale, causal, window, soft_cap)
    # decode: every head its own keys, one batched product
    if window and window < length:
        keys, values = keys[:, :, length - window :], values[:, :, length - window :]
    k, v = (part.float().repeat(1, heads // groups, 1, 1) for part in (keys, values))
    score = torch.einsum("bhd,bhnd->bhn", q[:, 0].float(), k) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    mixed = torch.einsum("bhn,bhnd->bhd", score.softmax(-1), v)
    return mixed.reshape(batch, 1, heads, width).to(q.dtype)
