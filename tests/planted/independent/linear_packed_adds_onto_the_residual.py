"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall

OP = "linear_packed"
FAULT = (
    "The product is added onto residual.float(), which for a float32 residual is the residual "
    "itself: the caller's residual is changed, and is what is returned."
)
CAUGHT_BY = "inputs"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    if call.residual is None:
        return torch_path.forward(call)
    product = torch_path.forward(replace(call, residual=None, out_dtype=torch.float32))
    return call.residual.float().add_(product).to(call.out_dtype)
