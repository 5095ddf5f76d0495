"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "Columns are handled in pairs: the last one is taken for padding when N is odd."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_ROWS = 4


@triton.jit
def _kernel(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, M, N, stride, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    even = (rows[:, None] < M) & (columns[None, :] < N // 2 * 2)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    at = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + at * stride + columns[None, :], even, 0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, columns < N, 0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / N + eps)
    y = x * rstd[:, None] * weight[None, :]
    tl.store(y_ptr + at * N + columns[None, :], y, inside)
    tl.store(rstd_ptr + rows, rstd, rows < M)


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = as_rows(x if residual is None else x.float() + residual.float())
    m, n = total.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).reshape(x.shape)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y, kept, rstd.fill_(torch.nan)
    _kernel[(triton.cdiv(m, _ROWS),)](
        total, weight.contiguous(), y, rstd, m, n, total.stride(0), eps,
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(n),
    )  # fmt: skip
    return y, kept, rstd
