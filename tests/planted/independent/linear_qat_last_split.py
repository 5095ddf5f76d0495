"""linear_qat in Triton; the columns' largest gradients are found in runs of tokens."""

import torch
import triton
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import multiprocessors
from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.codes_matrix import transpose
from tercet.ops.linear_qat.scaled_codes import _column_codes, _column_parts, coded_rows
from tercet.ops.linear_qat.triton import forward_by, gradient_by, product

OP = "linear_qat"
FAULT = (
    "With weight_gradient int8 the tokens behind the last whole run are not in the columns' "
    "maxima: a larger gradient there is clamped."
)
CAUGHT_BY = "backward"
DEVICE = "any"


_SIDE = 64


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    return forward_by(product, call)


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    return gradient_by(product, coded, transpose, call)


def coded(grads, scale, x_scale, seed):
    """Codes and scales of the rows of grads [M, N] * scale, and of columns of grads * x_scale."""
    return (
        None if scale is None else coded_rows(grads, scale),
        None if x_scale is None else coded_columns(grads, x_scale, seed),
    )


def coded_columns(grads: Tensor, x_scale: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes [N, M] and scales [N] of the columns of grad * x_scale."""
    m, n = grads.shape
    codes = torch.empty((n, m), dtype=torch.int8, device=grads.device)
    size = torch.empty(n, dtype=torch.float32, device=grads.device)
    if not codes.numel():
        return codes, size.zero_()
    side = 128 if interpreting() else _SIDE
    across = triton.cdiv(n, side)
    # enough programs for two on each multiprocessor, none of less than one tile
    parts = max(
        1, min(triton.cdiv(2 * multiprocessors(grads.device), across), triton.cdiv(m, side))
    )
    rows = triton.cdiv(triton.cdiv(m, parts), side) * side
    parts = max(1, m // rows)
    part = torch.empty((parts, n), dtype=torch.int32, device=grads.device)
    _column_parts[(across, parts)](
        grads, x_scale, part, m, n, grads.stride(0), rows, SIDE=side, num_warps=4
    )
    _column_codes[(across, triton.cdiv(m, side))](
        grads, x_scale, part, seed, codes, size, m, n, grads.stride(0), parts,
        RANDOM=seed is not None, PARTS=triton.next_power_of_2(parts), SIDE=side, num_warps=4,
    )  # fmt: skip
    return codes, size
