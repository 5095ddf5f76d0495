"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.philox import coarse_uniform
from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.packed_weight.row_codes import quantize

OP = "linear_qat"
FAULT = (
    "The int8 gradient of the weight takes the largest of each column without a thought of "
    "no tokens, and raises there instead of giving zeros."
)
DEVICE = "any"
CAUGHT_BY = "backward"
__all__ = ["forward", "gradient"]

_EXACT = 1024


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    x, scale, bias, x_codes, x_scale = call.x, call.scale, call.bias, call.x_codes, call.x_scale
    m, k = x.shape[:-1].numel(), x.shape[-1]
    kept = (x.new_empty(0, dtype=torch.int8), x.new_empty(0, dtype=torch.float32))
    if x_codes is None or x_scale is None:
        kept = quantize(x.reshape(m, k), "int8")[:2]
        x_codes, x_scale = kept
    y = exact_product(x_codes.reshape(m, k), call.codes.T)
    y, rows = y * scale.reshape(-1), x_scale.reshape(m, 1)
    # with a bias rounded once, as a fused product and sum: the product is exact in float64
    y = y * rows if bias is None else (y.double() * rows + bias).float()
    return y.to(call.out_dtype).reshape(*x.shape[:-1], len(call.codes)), *kept


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    grad, x_dtype, weight_dtype = call.grad, call.x_dtype, call.weight_dtype
    grad_x = grad.new_empty(0, dtype=x_dtype or grad.dtype)
    grad_weight = grad.new_empty(0, dtype=weight_dtype or grad.dtype)
    if x_dtype is not None:
        back, size, _ = quantize(grad * call.scale.reshape(-1), "int8")
        grad_x = (exact_product(back, call.codes) * size[:, None]).to(x_dtype)
    if weight_dtype is not None and call.weight_gradient == "int8":
        rounded, size = column_codes(grad * call.x_scale[:, None], call.seed)
        grad_weight = (exact_product(rounded, call.x_codes) * size[:, None]).to(weight_dtype)
    elif weight_dtype is not None:
        assert call.seen is not None
        grad_weight = float_product(grad, call.seen, weight_dtype)
    return grad_x, grad_weight


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """left [M, K] @ right [K, N] of int8 codes, summed exactly, rounded once to float32."""
    total = torch.zeros((len(left), right.shape[1]), dtype=torch.float64, device=left.device)
    for first in range(0, left.shape[1], _EXACT):
        piece = slice(first, first + _EXACT)
        total += left[:, piece].float() @ right[piece].float()
    return total.float()


def float_product(grad: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """grad^T [N, M] @ seen [M, K], summed in float32, in dtype."""
    summed = dtype if dtype == grad.dtype else torch.float32
    shape = (grad.shape[1], seen.shape[1])
    total = torch.empty(shape, dtype=summed, device=grad.device)
    add_product(total, grad.T, seen, fresh=True)
    return total.to(dtype)


def column_codes(grad: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes [N, M] of the columns of [M, N] and their scales [N], rounded at random with a seed."""
    rows = grad.T.contiguous()
    scale = rows.abs().amax(1) / torch.full_like(rows[:, 0], 127.0)
    codes, _, _ = quantize(rows, "int8")
    if seed is None:
        return codes, scale
    usable = ((scale > 0) & scale.isfinite())[:, None]
    ratio = torch.where(usable, rows, 0.0) / torch.where(usable, scale[:, None], 1.0)
    ratio = ratio.clamp(-127, 127)
    r, c = rows.shape
    return (ratio + coarse_uniform(seed, r, c)).floor().to(torch.int8), scale
