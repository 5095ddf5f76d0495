"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.ops.linear_packed import torch_path
from tercet.ops.linear_packed.torch_path import gradient
from tercet.packed_weight.call import PackedCall

OP = "linear_packed"
FAULT = (
    "The float32 copy of a 16-bit bias is kept by its address, dtype and length: a bias that an "
    "optimizer changes in place, or that another one's memory is given to, is not read again."
)
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_MOST = 256
_widened: dict[object, Tensor] = {}


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed."""
    bias = call.bias
    if bias is not None and bias.dtype != torch.float32:
        key = bias.data_ptr(), bias.dtype, len(bias), bias.stride(0)
        if key not in _widened:
            if len(_widened) >= _MOST:
                _widened.clear()
            _widened[key] = bias.float()
        bias = _widened[key]
    return torch_path.forward(replace(call, bias=bias))
