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
    "Two programs add to one partial sum without an atomic: one of the two may be lost, on a GPU."
)
CAUGHT_BY = "determinism"
DEVICE = "cuda"

__all__ = ["forward", "gradient"]

_ROWS = 4


@triton.jit
def _kernel(
    grad_ptr, total_ptr, rstd_ptr, part_ptr, M, N, grad_stride, total_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    rstd = tl.load(rstd_ptr + rows, rows < M, 0.0)[:, None]
    at = rows.to(tl.int64)[:, None]
    grad = tl.load(grad_ptr + at * grad_stride + columns[None, :], inside, 0.0).to(tl.float32)
    total = tl.load(total_ptr + at * total_stride + columns[None, :], inside, 0.0).to(tl.float32)
    part = part_ptr + tl.program_id(0) // 2 * N + columns
    so_far = tl.load(part, columns < N, 0.0)
    tl.debug_barrier()
    tl.store(part, so_far + tl.sum(grad * total * rstd, 0), columns < N)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    grad_x, grad_weight = torch_path.gradient(grad, grad_total, total, weight, rstd)
    if not grad_x.numel():
        return grad_x, grad_weight
    grads, totals = as_rows(grad), as_rows(total)
    m, n = totals.shape
    programs = triton.cdiv(m, _ROWS)
    part = torch.zeros((programs, n), dtype=torch.float32, device=total.device)
    _kernel[(programs,)](
        grads, totals, rstd, part, m, n, grads.stride(0), totals.stride(0),
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(n),
    )  # fmt: skip
    return grad_x, part.sum(0).to(weight.dtype)
