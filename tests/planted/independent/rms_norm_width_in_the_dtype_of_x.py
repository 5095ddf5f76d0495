"""rms_norm in plain torch, with a fault; written blind.

The sum of squares is float32, the number that it is divided by is a tensor of x's dtype. Usual
widths (4096, 5120, 14336) are exact in bfloat16 and float16. Others are not: 1000 is in bfloat16,
1001 is not, and rstd is off by up to 2^-9; and in float16 a width beyond 65504 is inf, the mean 0,
and a row is divided by sqrt(eps) alone. A user hits it with odd widths, or a norm over a flattened
feature map.
"""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "The sum of squares is divided by the width in x's dtype: widths beyond 256 in bfloat16 and "
    "2048 in float16 may be rounded, and one beyond 65504 is inf in float16."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    width = torch.tensor(x.shape[-1], dtype=x.dtype, device=x.device)
    rstd = (total.square().sum(-1, keepdim=True) / width + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)
