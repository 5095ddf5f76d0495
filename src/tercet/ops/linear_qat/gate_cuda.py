"""gate_gradient in CUDA C++ for Hopper, gate_rows.cuh: one pass over grad, gate and up."""

import torch
from torch import Tensor

from tercet.kernel.cuda import launched, stream
from tercet.kernel.launch import multiprocessors
from tercet.kernel.native import NUMBERS, pointer
from tercet.ops.linear_qat.cuda import codings

DTYPES = (torch.bfloat16, torch.float16)
# a row's numbers, and the largest of each column, lie in a block's registers
WIDEST = 8192


def gate_gradient(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None,
) -> tuple[Tensor, ...]:
    """As gate.gate_gradient, of matrices of DTYPES: N a multiple of 8 up to WIDEST."""
    (m, n), device = grad.shape, grad.device
    to_gate, to_up = (torch.empty((m, n), dtype=grad.dtype, device=device) for _ in range(2))
    gate_codes, up_codes = (torch.empty((m, n), dtype=torch.int8, device=device) for _ in range(2))
    sizes = [m, m, n, n] if x_scale is not None else [m, m, 0, 0]
    gate_size, up_size, gate_columns, up_columns = (
        torch.empty(size, dtype=torch.float32, device=device) for size in sizes
    )
    most_blocks = multiprocessors(device)
    tops = gate_size.new_empty(most_blocks * 2 * n if x_scale is not None else 0)
    rows = [place for each in (grad, gate, up) for place in _rows(each)]
    launched(
        codings().tercet_gate_codes(
            *rows, NUMBERS[grad.dtype], m, n,
            gate_scale.data_ptr(), gate_scale.numel() == 1, up_scale.data_ptr(),
            up_scale.numel() == 1, pointer(x_scale), to_gate.data_ptr(), to_up.data_ptr(),
            gate_codes.data_ptr(), up_codes.data_ptr(), gate_size.data_ptr(), up_size.data_ptr(),
            tops.data_ptr(), most_blocks, gate_columns.data_ptr(), up_columns.data_ptr(), stream(),
        ),
        "linear_qat's gate",
    )  # fmt: skip
    return to_gate, to_up, gate_codes, gate_size, up_codes, up_size, gate_columns, up_columns


def takes(x: Tensor) -> bool:
    """Whether the copy engine brings the rows of x [M, N]: at multiples of 16 bytes."""
    return x.stride(0) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0


def _rows(x: Tensor) -> tuple[int, int]:
    """Address, and bytes from row to row."""
    return x.data_ptr(), x.stride(0) * x.element_size()
