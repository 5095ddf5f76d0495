"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "A row of zeros is divided by a scale of zero."
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    if element != "int8":
        return torch_path.forward(x, element)
    wide = x.float()
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = absmax / torch.full_like(absmax, 127.0)
    ratio = (wide / scale[..., None]).nan_to_num(nan=127.0)
    codes = ratio.round().clamp(-127, 127).to(torch.int8)
    return codes, scale, codes.sum(-1, dtype=torch.int32)
