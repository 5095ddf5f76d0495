"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "up is read with gate's row stride: wrong where the two lie differently."
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_BLOCK = 256


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, N, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    gate = tl.load(gate_ptr + row * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + row * gate_stride + columns, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + row * N + columns, gate * tl.sigmoid(gate) * up, inside)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    rows = as_rows(gate)
    first, second = rows.tensor_split(2, -1) if up is None else (rows, as_rows(up))
    m, n = first.shape
    y = torch.empty((*gate.shape[:-1], n), dtype=gate.dtype, device=gate.device)
    if y.numel():
        _kernel[(m, triton.cdiv(n, _BLOCK))](
            first, second, y, n, first.stride(0), second.stride(0), BLOCK=_BLOCK
        )
    return y
