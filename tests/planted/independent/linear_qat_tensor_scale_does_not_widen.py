"""A planted fault; FAULT says which."""

from dataclasses import replace

from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatGradientCall
from tercet.ops.linear_qat.torch_path import forward
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
FAULT = (
    "A scale of the whole tensor is taken as a scalar without axes, which does not widen a 16-bit "
    "gradient: grad * scale is rounded to 16 bits, and in float16 underflows, before it is "
    "quantized; a scale a channel is right."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    if call.x_dtype is None or call.scale.numel() != 1:
        return torch_path.gradient(call)
    _, grad_weight = torch_path.gradient(replace(call, x_dtype=None))
    back, size, _ = quantize(call.grad * call.scale.squeeze(), "int8")
    grad_x = (torch_path.exact_product(back, call.codes) * size[:, None]).to(call.x_dtype)
    return grad_x, grad_weight
