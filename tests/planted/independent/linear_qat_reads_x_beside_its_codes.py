"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient

OP = "linear_qat"
FAULT = (
    "Rows of x that are not finite are made NaN in y also where x_codes are given, although the "
    "values of x are not to be read then: an x that only carries the gradient may hold anything."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat; codes alone would hide that x was not finite."""
    y, codes, scale = torch_path.forward(call)
    if call.x.shape[-1]:
        broken = ~call.x.isfinite().all(-1, keepdim=True)
        y = y.masked_fill(broken, torch.nan)
    return y, codes, scale
