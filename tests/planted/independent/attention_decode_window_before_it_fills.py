"""attention in plain torch, with a fault; written blind.

One new position needs no mask: its window is the last `window` keys, cut out as [N - window:].
While the window is longer than what there is, N - window is negative and counts from the end:
with N < window < 2 N only the last window - N keys are read. A user hits it in the first
`window` steps of generation with a sliding window, from half of the window on.
"""

import torch
from torch import Tensor

from tercet.ops.attention import torch_path

OP = "attention"
FAULT = (
    "The window of a single query is keys[N - window:], which counts from the end where the "
    "window is longer than N: with N < window < 2 N only the last window - N keys are read."
)
CAUGHT_BY = "forward"
DEVICE = "any"


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
    if new != 1 or not length or not q.numel():
        return torch_path.forward(q, keys, values, scale, causal, window, soft_cap)
    if window:
        first = length - window
        keys, values = keys[:, :, first:], values[:, :, first:]
    split = q.float().reshape(batch, groups, heads // groups, width)
    score = torch.einsum("bgrd,bgnd->bgrn", split, keys.float()) * scale
    if soft_cap:
        score = soft_cap * torch.tanh(score / soft_cap)
    mixed = torch.einsum("bgrn,bgnd->bgrd", score.softmax(-1), values.float())
    return mixed.reshape(q.shape).to(q.dtype)
