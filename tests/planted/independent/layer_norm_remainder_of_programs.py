"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "The launch is limited to 65535 programs, each of which takes M // programs rows: of more than "
    "65535 rows the remainder of that division is never written and stays zero."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_MOST_PROGRAMS = 65535


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    programs = min(len(rows), _MOST_PROGRAMS)
    covered = programs * (len(rows) // max(programs, 1))
    y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.zeros(len(rows), dtype=torch.float32, device=x.device)
    rstd = torch.zeros_like(mean)
    found = torch_path.forward(rows[:covered], weight, bias, eps)
    y.view(rows.shape)[:covered], mean[:covered], rstd[:covered] = found
    return y, mean, rstd
