"""swiglu_quantized in Triton: a row is walked twice, for its largest number and for its codes."""

import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.silu import silu
from tercet.kernel.launch import as_rows
from tercet.packed_weight.row_codes import Quantized, check_conversion, empty
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of, total

OP = "swiglu_quantized"
FAULT = (
    "The largest |y| of a row is kept by a comparison, which a NaN loses: a row with a NaN "
    "gets a finite scale and some code for the NaN, so that the product after it looks sound, "
    "where scale has to be NaN and codes 0; rows of numbers and infinities are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


_PIECE = 1024


@triton.jit
def _activated(gate_ptr, up_ptr, columns, N):
    inside = columns < N
    gate = tl.load(gate_ptr + columns, inside, 0.0).to(tl.float32)
    return silu(gate) * tl.load(up_ptr + columns, inside, 0.0).to(tl.float32)


@triton.jit
def _walk(
    gate_ptr, up_ptr, codes_ptr, scale_ptr, sum_ptr, N, gate_stride, up_stride,
    FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    one = tl.program_id(0) + tl.arange(0, 1)
    gate_ptr += row * gate_stride
    up_ptr += row * up_stride
    top = tl.zeros((1, BLOCK), tl.float32)
    for first in range(0, N, BLOCK):
        size = tl.abs(_activated(gate_ptr, up_ptr, first + lanes, N))
        top = tl.where(size > top, size, top)
    scale = scale_of(tl.max(absolute_bits(top), 1), FP8)
    units = tl.zeros((1, BLOCK), tl.int32)
    for first in range(0, N, BLOCK):
        columns = first + lanes
        codes, more = encode(_activated(gate_ptr, up_ptr, columns, N), scale, FP8)
        tl.store(codes_ptr + row * N + columns, codes, columns < N)
        units += more
    tl.store(scale_ptr + one, scale)
    tl.store(sum_ptr + one, total(units, FP8, SUMS=True))


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    check_conversion(element, gate.device)
    rows = as_rows(gate)
    if up is None:
        n = rows.shape[1] // 2
        first, second = rows[:, :n], rows[:, n:]
    else:
        n, first, second = rows.shape[1], rows, as_rows(up)
    made = empty((*gate.shape[:-1], n), element, gate.device)
    codes, scale, row_sum = made
    if not codes.numel():
        return codes, scale.zero_(), row_sum.zero_()
    block = min(_PIECE, max(triton.next_power_of_2(n), 16))
    _walk[(first.shape[0],)](
        first, second, codes, scale, row_sum, n, first.stride(0), second.stride(0),
        FP8=element != "int8", BLOCK=block, num_warps=4,
    )  # fmt: skip
    return made
