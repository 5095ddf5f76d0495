"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "The reciprocal root is an estimate from the exponent's bits and one Newton step: off by 1e-3."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    square = total.square().mean(-1, keepdim=True) + eps
    estimate = (0x5F3759DF - (square.view(torch.int32) >> 1)).view(torch.float32)
    rstd = estimate * (1.5 - 0.5 * square * estimate * estimate)
    y = (total * rstd * weight.float()).to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype)
    return y, kept, rstd.reshape(-1)
