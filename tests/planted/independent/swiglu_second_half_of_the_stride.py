"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.silu import silu
from tercet.kernel.launch import as_rows
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = (
    "Without up, the second half of a row is looked for half of the rows' distance behind its "
    "begin, not N elements: wrong where fused rows lie further apart than they are long."
)
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


@triton.jit
def _forward(
    gate_ptr, up_ptr, y_ptr, M, N, gate_stride, up_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (rows < M) & (columns < N)
    rows = rows.to(tl.int64)
    gate = tl.load(gate_ptr + rows * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + rows * up_stride + columns, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + rows * N + columns, silu(gate) * up, inside)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    first = as_rows(gate)
    m, n = first.shape
    if up is None:
        n //= 2
        # the rows' distance is twice that of the halves
        apart = first.stride(0) if m > 1 else 2 * n
        begin = first.storage_offset() + apart // 2
        second = first.as_strided((m, n), (apart, 1), begin)
    else:
        second = as_rows(up)
    y = torch.empty((*gate.shape[:-1], n), dtype=gate.dtype, device=gate.device)
    if y.numel():
        block = min(1024, triton.next_power_of_2(n))
        _forward[(triton.cdiv(m, 4), triton.cdiv(n, block))](
            first, second, y, m, n, first.stride(0), second.stride(0), ROWS=4, BLOCK=block
        )
    return y
