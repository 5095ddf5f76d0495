"""A planted fault; FAULT says which."""

import torch

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "X.float() is x itself where x is float32, and the residual is added to it in place: the "
    "caller's x is changed."
)
DEVICE = "any"
CAUGHT_BY = "inputs"
__all__ = ["forward", "gradient"]


def forward(x, weight, residual, eps):
    total = x.float()
    if residual is not None:
        total += residual
    rstd = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype, copy=True).contiguous()
    return y, kept, rstd.reshape(-1)
