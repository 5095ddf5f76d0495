"""A right kernel that looks unusual; UNUSUAL says how."""

import torch
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
UNUSUAL = (
    "Codes are rounded by adding and taking off 1.5 * 2^23, to nearest even as float32 rounds."
)


_MAGIC = 1.5 * 2.0**23


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    if element != "int8":
        return torch_path.forward(x, element)
    wide = x.float()
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = absmax / torch.full_like(absmax, 127.0)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], wide, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    codes = ((ratio.clamp(-127.0, 127.0) + _MAGIC) - _MAGIC).to(torch.int8).contiguous()
    return codes, scale, codes.sum(-1, dtype=torch.int32)
