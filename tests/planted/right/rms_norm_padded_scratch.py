"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
UNUSUAL = "It copies x into a wider scratch tensor, padded with zeros, and writes y from there."

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    n = x.shape[-1]
    shape = (*x.shape[:-1], -(-n // 128) * 128)
    scratch = torch.zeros(shape, dtype=torch.float32, device=x.device)
    scratch[..., :n] = x
    if residual is not None:
        scratch[..., :n] += residual
    rstd = torch.rsqrt(scratch.square().sum(-1, keepdim=True) / float(n) + eps)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y.copy_(scratch[..., :n] * rstd * weight)
    kept = x.new_empty(0) if residual is None else scratch[..., :n].to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)
