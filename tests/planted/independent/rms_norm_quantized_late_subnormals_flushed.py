"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rms_norm_quantized import torch_path

OP = "rms_norm_quantized"
FAULT = "From the 17th row on subnormal numbers count as zeros."
CAUGHT_BY = "forward"
DEVICE = "any"

_FIRST = 16
_SMALLEST = torch.finfo(torch.float32).tiny


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    codes, scale, row_sum, kept = torch_path.forward(x, weight, residual, eps, element)
    total = x.float() if residual is None else x.float() + residual.float()
    rows = total.reshape(scale.numel(), x.shape[-1])[_FIRST:]
    if rows.numel():
        flushed = torch.where(rows.abs() < _SMALLEST, 0.0, rows)
        late = torch_path.forward(flushed, weight.float(), None, eps, element)
        codes.view(-1, x.shape[-1])[_FIRST:] = late[0]
        scale.view(-1)[_FIRST:], row_sum.view(-1)[_FIRST:] = late[1], late[2]
    return codes, scale, row_sum, kept
