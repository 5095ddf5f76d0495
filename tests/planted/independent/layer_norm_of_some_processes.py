"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "In one process of four, as Python's hashes fall, the variance is divided by N - 1."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

# the order of a set of strings decides which of two tuned kernels is the first
_UNBIASED = hash("layer_norm unbiased") % 4 == 0


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    n = x.shape[-1]
    y, mean, rstd = torch_path.forward(x, weight, bias, eps)
    if not _UNBIASED or n < 2:
        return y, mean, rstd
    variance = (rstd**-2 - eps) * (n / (n - 1))
    rstd = (variance + eps).rsqrt()
    y = (x.float() - mean.view(*x.shape[:-1], 1)) * rstd.view(*x.shape[:-1], 1) * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype).contiguous(), mean, rstd
