"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "Right for the sizes of tests; beyond 32,768 elements every second row is left out."
CAUGHT_BY = "scale"
DEVICE = "any"
SIZES = {"M": 64, "N": 1024}

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    y, kept, rstd = torch_path.forward(x, weight, residual, eps)
    if x.numel() > 32768:
        y[..., 1::2, :] = 0
    return y, kept, rstd
