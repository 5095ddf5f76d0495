"""rms_norm_quantized in plain torch, with a fault; written blind.

Where all rows of x are alike one of them is normalized and quantized for all; but the residual, in
which they may differ, is not looked at. total is right, codes, scales and sums are the first row's.
A user hits it with a branch whose last layer begins at 0, so that x is all zeros, behind a residual
that is not.
"""

import torch
from torch import Tensor

from tercet.ops.rms_norm_quantized import torch_path

OP = "rms_norm_quantized"
FAULT = (
    "Where all rows of x are equal, all get the codes of the first, though their residuals differ."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    leading, width = x.shape[:-1], x.shape[-1]
    rows = x.reshape(leading.numel(), width)
    if len(rows) < 2 or not bool((rows == rows[:1]).all()):
        return torch_path.forward(x, weight, residual, eps, element)
    added = None if residual is None else residual.reshape(rows.shape)
    first = None if added is None else added[:1]
    codes, scale, row_sum, _ = torch_path.forward(rows[:1], weight, first, eps, element)
    total = x.new_empty(0) if residual is None else (x.float() + residual).to(x.dtype).contiguous()
    # of 8-bit floats torch repeats none
    bytes_of = codes.view(torch.uint8).expand(len(rows), width).contiguous()
    return (
        bytes_of.view(codes.dtype).reshape(x.shape),
        scale.expand(len(rows)).reshape(leading).contiguous(),
        row_sum.expand(len(rows)).reshape(leading).contiguous(),
        total,
    )
