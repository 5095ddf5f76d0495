"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatCall
from tercet.ops.linear_qat.torch_path import gradient

OP = "linear_qat"
FAULT = "Where K is 0 there is no product and y is zeros at once: the bias is left out."
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    x = call.x
    if x.numel():
        return torch_path.forward(call)
    m, k, given = x.shape[:-1].numel(), x.shape[-1], call.x_codes is not None
    return (
        x.new_zeros((*x.shape[:-1], len(call.codes)), dtype=call.out_dtype),
        x.new_zeros((0,) if given else (m, k), dtype=torch.int8),
        x.new_zeros(0 if given else m, dtype=torch.float32),
    )
