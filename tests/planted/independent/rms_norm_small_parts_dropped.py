"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "What is a millionth of its row's largest element or less becomes zero."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    if x.numel():
        size = (x.float() if residual is None else x.float() + residual.float()).abs()
        y = torch.where(size <= size.amax(-1, keepdim=True) * 2**-20, 0.0, y)
    return y, kept, rstd
