"""A planted fault; FAULT says which."""

import torch

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "Differences are clamped at -87 so that no exponential is subnormal: masked (-inf) and "
    "far elements become 1e-38 in place of 0 or less."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(x, scale):
    values = x.float()
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.clamp(min=-87.0).exp()  # a subnormal number costs a trap on some CPUs
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()
