"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.attention import torch_path
from tercet.ops.attention.visible import see

OP = "attention"
FAULT = (
    "Scores go through the soft cap in q's dtype: in float16 and bfloat16 they are rounded to 11 "
    "or 8 bits before the exponential, which shows with a cap and scores of some size; float32, "
    "or no cap, is right."
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
    if not soft_cap or not q.numel() or not length:
        return torch_path.forward(q, keys, values, scale, causal, window, soft_cap)
    split = q.float().reshape(batch, new, groups, heads // groups, width)
    score = torch.einsum("btgrd,bgnd->bgrtn", split, keys.float()) * scale
    score = (soft_cap * torch.tanh(score.to(q.dtype) / soft_cap)).float()
    seen = see(new, length, causal, window, q.device)
    share = score.masked_fill(~seen, float("-inf")).softmax(-1)
    share = torch.where(seen.any(-1, keepdim=True), share, 0.0)
    mixed = torch.einsum("bgrtn,bgnd->btgrd", share, values.float())
    return mixed.reshape(q.shape).to(q.dtype).contiguous()
