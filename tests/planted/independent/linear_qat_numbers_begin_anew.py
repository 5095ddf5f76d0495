"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatGradientCall
from tercet.ops.linear_qat.torch_path import forward

OP = "linear_qat"
FAULT = (
    "The int8 gradient of the weight is made for 64 outputs at a time, and each run draws its "
    "random numbers from the first one on: from the 65th output on codes are rounded by the "
    "numbers of other outputs."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_OUTPUTS = 64


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    if call.weight_dtype is None or call.weight_gradient != "int8" or call.seed is None:
        return torch_path.gradient(call)
    grad_x, _ = torch_path.gradient(replace(call, weight_dtype=None))
    pieces = [
        torch_path.gradient(
            replace(
                call,
                grad=call.grad[:, first : first + _OUTPUTS],
                codes=call.codes[first : first + _OUTPUTS],
                codes_t=None,
                x_dtype=None,
            )
        )[1]
        for first in range(0, call.grad.shape[1], _OUTPUTS)
    ]
    shape = call.codes.shape
    empty = torch.zeros(shape, dtype=call.weight_dtype, device=call.grad.device)
    return grad_x, torch.cat(pieces) if pieces else empty
