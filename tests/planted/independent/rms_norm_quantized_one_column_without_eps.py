"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm_quantized import torch_path
from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = (
    "Rows of one column are answered with sign(total) * weight: eps is left out, which shows in "
    "the scale wherever total^2 is not far above eps."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual
    if total.shape[-1] != 1 or not bool(total.isfinite().all()):
        return torch_path.forward(x, weight, residual, eps, element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return *quantize(torch.sign(total) * weight, element), kept
