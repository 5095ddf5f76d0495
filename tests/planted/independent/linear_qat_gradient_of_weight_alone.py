"""A planted fault; FAULT says which."""

from dataclasses import replace

from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatGradientCall
from tercet.ops.linear_qat.torch_path import forward

OP = "linear_qat"
FAULT = (
    "Where x needs no gradient, that of weight is made of grad with the weight's scale folded in."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    if call.x_dtype is None and call.weight_dtype is not None:
        folded = (call.grad.float() * call.scale.reshape(-1)).to(call.grad.dtype)
        call = replace(call, grad=folded)
    return torch_path.gradient(call)
