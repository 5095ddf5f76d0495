"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "The row's sum is kept in eight bits and wraps."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    if element != "int8":
        return torch_path.forward(x, element)
    wide = x.float()
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = absmax / torch.full_like(absmax, 127.0)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], wide, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    codes = ratio.round().clamp(-127, 127).to(torch.int8)
    return codes, scale, codes.sum(-1, dtype=torch.int8).to(torch.int32)
