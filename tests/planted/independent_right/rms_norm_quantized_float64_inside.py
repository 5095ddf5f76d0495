"""rms_norm_quantized in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
UNUSUAL = "The norm is computed in float64, and rounded to float32 once, before it is quantized."


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = x.double()
    if residual is not None:
        total = total + residual.double()
    norm = (total * total).mean(-1, keepdim=True)
    y = total / (norm + eps).sqrt() * weight.double()
    codes, scale, row_sum = quantize(y.float().contiguous(), element)
    kept = x.new_empty(0)
    if residual is not None:
        kept = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(total)
    return codes, scale, row_sum, kept
