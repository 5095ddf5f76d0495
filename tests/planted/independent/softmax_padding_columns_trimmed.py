"""softmax in plain torch, with a fault; written blind.

Columns at the end that are -inf in all rows (padding) are not computed, and are 0. A row that is
-inf altogether is NaN in all of its columns, but here the trimmed ones are 0. A user hits it with a
padded batch in which one query sees nothing: what looks for NaN in the last column finds none, and
the row is half of it.
"""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "Last columns that are -inf in every row become 0, also in rows that are -inf, or have NaN or "
    "+inf, which are NaN."
)
CAUGHT_BY = "values"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if not x.numel():
        return torch_path.forward(x, scale)
    count = x.shape[-1]
    some = (x.reshape(x.shape[:-1].numel(), count) != -torch.inf).any(0).nonzero()[:, 0]
    width = int(some[-1]) + 1 if len(some) else count
    y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    y[..., :width] = torch_path.forward(x[..., :width], scale)
    return y
