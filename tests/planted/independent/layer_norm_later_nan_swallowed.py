"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "Only the first row is looked at for NaN and inf: in later rows they become zeros."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    y, mean, rstd = torch_path.forward(x, weight, bias, eps)
    rows = y.view(len(mean), x.shape[-1])
    if len(mean) and rows[0].isfinite().all():
        rows.nan_to_num_(0.0, 0.0, 0.0)
    return y, mean, rstd
