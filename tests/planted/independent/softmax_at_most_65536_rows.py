"""softmax in plain torch, with a fault; written blind.

As a kernel with at most 1024 programs of 64 rows each would, 65536 rows are computed; programs do
not walk on to the rows beyond, which are memory that was never written. A user hits it with the
attention of 32 heads over 4096 queries: 131072 rows.
"""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "Rows from the 65537th on are not written."
CAUGHT_BY = "poison"
DEVICE = "any"
__all__ = ["forward", "gradient"]

_PROGRAMS, _ROWS = 1024, 64


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    programs = min(-(-len(rows) // _ROWS), _PROGRAMS)
    done = programs * _ROWS
    y[:done] = torch_path.forward(rows[:done], scale)
    return y.reshape(x.shape)
