"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "In inference mode the exponentials are rounded to bfloat16."
CAUGHT_BY = "context"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if not torch.is_inference_mode_enabled() or not x.numel():
        return torch_path.forward(x, scale)
    values = x.float()
    parts = ((values - values.amax(-1, keepdim=True)) * scale).exp().bfloat16().float()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()
