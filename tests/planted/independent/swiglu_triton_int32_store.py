"""swiglu in Triton, with a fault; written blind."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows

OP = "swiglu"
FAULT = (
    "Loads use int64 row offsets, the store of y int32 ones. Shows only where y has more than "
    "2^31 elements; inputs far apart are read right."
)
CAUGHT_BY = "forward"


@triton.jit
def _forward(
    gate_ptr,
    up_ptr,
    y_ptr,
    M,
    N,
    tiles,
    gate_stride,
    up_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (rows < M) & (columns < N)
    far = rows.to(tl.int64)
    gate = tl.load(gate_ptr + far * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + far * up_stride + columns, inside, 0.0).to(tl.float32)
    tl.store(y_ptr + (rows * N + columns), gate * tl.sigmoid(gate) * up, inside)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    rows = as_rows(gate)
    if up is None:
        n = rows.shape[1] // 2
        first, second = rows[:, :n], rows[:, n:]
    else:
        first, second = rows, as_rows(up)
    m, n = first.shape
    y = torch.empty((*gate.shape[:-1], n), dtype=gate.dtype, device=gate.device)
    if not y.numel():
        return y
    block = min(1024, triton.next_power_of_2(n))
    tiles = triton.cdiv(n, block)
    _forward[(triton.cdiv(m, 2) * tiles,)](
        first, second, y, m, n, tiles, first.stride(0), second.stride(0), ROWS=2, BLOCK=block
    )
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    fused = up is None
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    sigmoid = torch.sigmoid(wide)
    grad_gate = sigmoid * (1 + wide * (1 - sigmoid)) * up * grad
    grad_up = wide * sigmoid * grad
    if fused:
        return torch.cat((grad_gate, grad_up), -1).to(gate.dtype), gate.new_empty(0)
    return grad_gate.to(gate.dtype).contiguous(), grad_up.to(gate.dtype).contiguous()
