"""linear_qat in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.torch_path import column_codes, float_product
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
UNUSUAL = (
    "Products of codes bit by bit: the left codes are eight planes of 0 and 1, the last of which "
    "counts -128, each multiplied in float64 with the right codes."
)
DEVICE = "any"


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    x, scale, bias, x_codes, x_scale = call.x, call.scale, call.bias, call.x_codes, call.x_scale
    m, k = x.shape[:-1].numel(), x.shape[-1]
    kept = (x.new_empty(0, dtype=torch.int8), x.new_empty(0, dtype=torch.float32))
    if x_codes is None or x_scale is None:
        kept = quantize(x.reshape(m, k), "int8")[:2]
        x_codes, x_scale = kept
    y = _product(x_codes.reshape(m, k), call.codes.T)
    y, rows = y * scale.reshape(-1), x_scale.reshape(m, 1)
    y = y * rows if bias is None else (y.double() * rows + bias).float()
    return y.to(call.out_dtype).reshape(*x.shape[:-1], len(call.codes)), *kept


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    grad, x_dtype, weight_dtype = call.grad, call.x_dtype, call.weight_dtype
    grad_x = grad.new_empty(0, dtype=x_dtype or grad.dtype)
    grad_weight = grad.new_empty(0, dtype=weight_dtype or grad.dtype)
    if x_dtype is not None:
        back, size, _ = quantize(grad * call.scale.reshape(-1), "int8")
        grad_x = (_product(back, call.codes) * size[:, None]).to(x_dtype)
    if weight_dtype is not None and call.weight_gradient == "int8":
        rounded, size = column_codes(grad * call.x_scale[:, None], call.seed)
        grad_weight = (_product(rounded, call.x_codes) * size[:, None]).to(weight_dtype)
    elif weight_dtype is not None:
        assert call.seen is not None
        grad_weight = float_product(grad, call.seen, weight_dtype)
    return grad_x, grad_weight


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left [M, K] @ right [K, N] of int8 codes, exact, rounded once to float32."""
    bits, wide = left.contiguous().view(torch.uint8), right.double()
    total = torch.zeros((left.shape[0], right.shape[1]), dtype=torch.float64, device=left.device)
    for bit in range(8):
        plane = ((bits >> bit) & 1).double() @ wide
        total += plane * (-128.0 if bit == 7 else 2.0**bit)
    return total.float()
