"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "The work runs on a stream of its own, which the caller's stream does not wait for."
CAUGHT_BY = "stream"
DEVICE = "cuda"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(2_000_000)
        right, kept, rstd = torch_path.forward(x, weight, residual, eps)
        y.copy_(right)
    return y, kept, rstd
