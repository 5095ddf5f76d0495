"""A planted fault; FAULT says which."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.ops.grouped_linear_packed import torch_path
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import gradient

OP = "grouped_linear_packed"
FAULT = (
    "The epilogue reads row_weight as if its elements lay side by side: of one that is a column "
    "of the router's [T, k] probabilities, or every second element, it takes other rows' weights."
)
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


@triton.jit
def _weigh(y_ptr, weight_ptr, out_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    at = rows.to(tl.int64)[:, None] * N + columns[None, :]
    y = tl.load(y_ptr + at, inside, 0.0) * tl.load(weight_ptr + rows, rows < M, 0.0)[:, None]
    tl.store(out_ptr + at, y, inside)


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, the rows' weights in a kernel of their own."""
    weight = call.row_weight
    if weight is None:
        return torch_path.forward(call)
    y = torch_path.forward(replace(call, row_weight=None, out_dtype=torch.float32))
    out = torch.empty(y.shape, dtype=call.out_dtype, device=y.device)
    m, n = y.shape
    if m and n:
        block = min(256, triton.next_power_of_2(n))
        _weigh[(triton.cdiv(m, 16), triton.cdiv(n, block))](
            y, weight, out, m, n, ROWS=16, BLOCK=block
        )
    return out
