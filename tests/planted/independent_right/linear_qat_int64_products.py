"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.torch_path import column_codes
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
UNUSUAL = (
    "Multiplies codes as int64 by broadcasting and summing a row at a time, and scales in float64."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    x, x_codes, x_scale = call.x, call.x_codes, call.x_scale
    m, k = x.shape[:-1].numel(), x.shape[-1]
    kept = (x.new_empty(0, dtype=torch.int8), x.new_empty(0, dtype=torch.float32))
    if x_codes is None or x_scale is None:
        kept = quantize(x.reshape(m, k), "int8")[:2]
        x_codes, x_scale = kept
    y = _product(x_codes.reshape(m, k), call.codes).double()
    y = y * call.scale.reshape(1, -1).double() * x_scale.reshape(m, 1).double()
    if call.bias is not None:
        y = y + call.bias.double()
    return y.float().to(call.out_dtype).reshape(*x.shape[:-1], len(call.codes)), *kept


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    grad, x_dtype, weight_dtype = call.grad, call.x_dtype, call.weight_dtype
    grad_x = grad.new_empty(0, dtype=x_dtype or grad.dtype)
    grad_weight = grad.new_empty(0, dtype=weight_dtype or grad.dtype)
    if x_dtype is not None:
        back, size, _ = quantize(grad.float() * call.scale.reshape(-1), "int8")
        found = _product(back, call.codes.T).double() * size[:, None].double()
        grad_x = found.float().to(x_dtype)
    if weight_dtype is not None and call.weight_gradient == "int8":
        rounded, size = column_codes(grad * call.x_scale[:, None], call.seed)
        found = _product(rounded, call.x_codes.T).double() * size[:, None].double()
        grad_weight = found.float().to(weight_dtype)
    elif weight_dtype is not None:
        assert call.seen is not None
        found = torch.einsum("mn,mk->nk", grad.double(), call.seen.double())
        grad_weight = found.float().to(weight_dtype)
    return grad_x, grad_weight


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left [M, K] right [N, K]^T as int64, exactly."""
    wide = right.to(torch.int64)
    total = torch.empty((len(left), len(right)), dtype=torch.int64, device=left.device)
    for row in range(len(left)):
        total[row] = (wide * left[row].to(torch.int64)).sum(1)
    return total
