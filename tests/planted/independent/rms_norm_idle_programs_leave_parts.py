"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = (
    "The gradient's 48 programs take cdiv(M, 48) rows each, and one without rows returns before "
    "it writes its part of grad_weight: where M is above 48 and no multiple of it the last parts "
    "are memory that was never written."
)
CAUGHT_BY = "poison"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_PROGRAMS = 48


@triton.jit
def _parts(
    grad_ptr, total_ptr, rstd_ptr, part_ptr, M, N, grad_stride, total_stride, each,
    BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * each
    if first < M:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < N
        part = tl.zeros((BLOCK,), tl.float32)
        for row in range(first, tl.minimum(first + each, M)):
            at = tl.full((), row, tl.int64)
            grad = tl.load(grad_ptr + at * grad_stride + columns, inside, 0.0).to(tl.float32)
            total = tl.load(total_ptr + at * total_stride + columns, inside, 0.0)
            part += grad * (total.to(tl.float32) * tl.load(rstd_ptr + row))
        tl.store(part_ptr + tl.program_id(0).to(tl.int64) * N + columns, part, inside)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    grad_x, grad_weight = torch_path.gradient(grad, grad_total, total, weight, rstd)
    if not total.numel():
        return grad_x, grad_weight
    rows, grads = as_rows(total), as_rows(grad)
    m, n = rows.shape
    programs = min(m, _PROGRAMS)
    part = torch.empty((programs, n), dtype=torch.float32, device=total.device)
    block = min(1024, triton.next_power_of_2(n))
    _parts[(programs, triton.cdiv(n, block))](
        grads, rows, rstd, part, m, n, grads.stride(0), rows.stride(0),
        triton.cdiv(m, programs), BLOCK=block,
    )  # fmt: skip
    return grad_x, part.sum(0).to(weight.dtype)
