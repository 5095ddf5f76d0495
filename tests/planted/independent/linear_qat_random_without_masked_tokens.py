"""linear_qat in plain torch, with a fault; written blind.

Tokens without a gradient are taken out before the int8 gradient of the weight, for they add nothing
to it. They do not; but the random number of an element depends on its place, and all behind a
missing token move up: with a seed, other codes are rounded up than the op says, and than every
other device computes. A user hits it with masked tokens (prompts, padding) and seeded int8
gradients.
"""

from torch import Tensor

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatGradientCall
from tercet.ops.linear_qat.torch_path import column_codes, exact_product, forward
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
FAULT = (
    "Tokens whose incoming gradient is 0 are left out of the int8 gradient of the weight: with a "
    "seed the random numbers of those behind them are others."
)
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    if call.weight_gradient != "int8" or call.weight_dtype is None:
        return torch_path.gradient(call)
    grad, x_dtype = call.grad, call.x_dtype
    grad_x = grad.new_empty(0, dtype=x_dtype or grad.dtype)
    if x_dtype is not None:
        back, size, _ = quantize(grad * call.scale.reshape(-1), "int8")
        grad_x = (exact_product(back, call.codes) * size[:, None]).to(x_dtype)
    some = (grad != 0).any(1).nonzero()[:, 0]
    rounded, size = column_codes(grad[some] * call.x_scale[some, None], call.seed)
    grad_weight = exact_product(rounded, call.x_codes[some]) * size[:, None]
    return grad_x, grad_weight.to(call.weight_dtype)
