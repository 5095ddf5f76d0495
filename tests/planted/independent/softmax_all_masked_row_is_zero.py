"""A planted fault; FAULT says which."""

import torch

from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "A row that is all -inf becomes zeros in place of NaN, as attention kernels do."
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(x, scale):
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = x.float()
    top = values.amax(-1, keepdim=True)
    shift = torch.where(top == -torch.inf, 0.0, top)
    parts = ((values - shift) * scale).exp()
    total = parts.sum(-1, keepdim=True)
    return (parts / torch.where(total == 0, 1.0, total)).to(x.dtype).contiguous()
