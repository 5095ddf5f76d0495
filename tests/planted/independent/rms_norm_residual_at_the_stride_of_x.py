"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "The residual's rows are looked for x's row stride apart where they lie further apart."
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    if residual is not None and x.dim() == 2 and x.numel():
        last, apart = (x.stride(1), residual.stride(1)), residual.stride(0) > x.stride(0)
        if last == (1, 1) and apart:
            residual = residual.as_strided(x.shape, x.stride())
    return torch_path.forward(x, weight, residual, eps)
