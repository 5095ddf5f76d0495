"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = (
    "A row of zeros is answered with scale 0 whatever eps is; with eps = 0 it is 0 / 0, and"
    " the scale must be NaN."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    # rows of padding: no infinite rstd
    rstd = torch.where((total == 0).all(-1, keepdim=True), 0.0, rstd)
    codes, scale, row_sum = quantize(total * rstd * weight, element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return codes, scale, row_sum, kept
