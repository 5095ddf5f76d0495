"""A planted fault; FAULT says which."""

import torch

from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = (
    "Torch's own layer_norm wants one dtype, so a float32 weight and bias are rounded to x's "
    "16 bits: wrong where weighted and bias nearly cancel."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(x, weight, bias, eps):
    w = weight.to(x.dtype).float()
    b = None if bias is None else bias.to(x.dtype).float()
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    mean = mean + (wide - mean).mean(-1, keepdim=True)
    centered = wide - mean
    rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    y = centered * rstd * w
    if b is not None:
        y = y + b
    return y.to(x.dtype).contiguous(), mean.reshape(-1), rstd.reshape(-1)
