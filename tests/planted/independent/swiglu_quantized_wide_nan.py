"""swiglu_quantized in Triton: a row lies in registers, or is read twice."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.dependent_launch import begin, dependent_launch
from tercet.kernel.device.silu import silu
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.packed_weight.row_codes import Quantized, check_conversion, empty
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of, total

OP = "swiglu_quantized"
FAULT = (
    "A row that is walked (more than 16384 columns) drops a NaN from its maximum: its scale "
    "is finite, and the NaN has some code."
)
CAUGHT_BY = "forward"
DEVICE = "any"


_HELD = 16384


@triton.jit
def _activated(gate_ptr, up_ptr, inside):
    """silu(gate) * up, float32; 0 outside."""
    gate = tl.load(gate_ptr, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr, inside, 0.0).to(tl.float32)
    return silu(gate) * up


@triton.jit
def _held(
    gate_ptr, up_ptr, codes_ptr, scale_ptr, sum_ptr,
    M, N, gate_stride, up_stride,
    FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < N)
    wide = rows.to(tl.int64)[:, None]
    gate_at = gate_ptr + wide * gate_stride + columns
    y = _activated(gate_at, up_ptr + wide * up_stride + columns, inside)
    scale = scale_of(tl.max(absolute_bits(y), 1), FP8)
    codes, units = encode(y, scale, FP8)
    tl.store(codes_ptr + wide * N + columns, codes, inside)
    tl.store(scale_ptr + rows, scale, rows < M)
    tl.store(sum_ptr + rows, total(units, FP8), rows < M)


@triton.jit
def _chunked(
    gate_ptr, up_ptr, codes_ptr, scale_ptr, sum_ptr,
    M, N, gate_stride, up_stride,
    FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    rows = tl.program_id(0) + tl.arange(0, ROWS)
    row = tl.program_id(0).to(tl.int64)
    gate_ptr += row * gate_stride
    up_ptr += row * up_stride
    top = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(0, N, BLOCK, num_stages=STAGES):
        columns = first + tl.arange(0, BLOCK)[None, :]
        y = _activated(gate_ptr + columns, up_ptr + columns, columns < N)
        top = tl.where(tl.abs(y) > top, tl.abs(y), top)
    scale = scale_of(tl.max(absolute_bits(top), 1), FP8)
    units = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in tl.range(0, N, BLOCK, num_stages=STAGES):
        columns = first + tl.arange(0, BLOCK)[None, :]
        y = _activated(gate_ptr + columns, up_ptr + columns, columns < N)
        codes, more = encode(y, scale, FP8)
        tl.store(codes_ptr + row * N + columns, codes, columns < N)
        units += more
    tl.store(scale_ptr + rows, scale, rows < M)
    tl.store(sum_ptr + rows, total(units, FP8, SUMS=True), rows < M)


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    check_conversion(element, gate.device)
    rows = as_rows(gate)
    first, second = (rows, as_rows(up)) if up is not None else rows.tensor_split(2, 1)
    m, n = first.shape
    codes, scale, row_sum = empty(torch.Size((*gate.shape[:-1], n)), element, gate.device)
    if not codes.numel():
        return codes, scale.zero_(), row_sum.zero_()
    options = dict(configuration("swiglu_quantized", "triton", {"M": m, "N": n}, _default(n)))
    held, stages = options.pop("HELD"), options.pop("STAGES")
    wanted = triton.next_power_of_2(n)
    kernel, height, block = _chunked, 1, options.pop("BLOCK")
    if wanted <= held:
        kernel, block = _held, wanted
        height = min(max(1, 1024 // block), triton.next_power_of_2(m))
    else:
        options["STAGES"] = stages
    kernel[(triton.cdiv(m, height),)](
        first, second, codes, scale, row_sum, m, n, first.stride(0), second.stride(0),
        FP8=element != "int8", ROWS=height, BLOCK=block, **dependent_launch(gate.device), **options,
    )  # fmt: skip
    return codes, scale, row_sum


def _default(n: int) -> dict[str, int]:
    """32 elements a thread where the row is held, 16 where it is walked."""
    warps = 8 if n > _HELD else min(max(triton.next_power_of_2(n) // 1024, 4), 16)
    return {"HELD": _HELD, "BLOCK": 4096, "STAGES": 2, "num_warps": warps}
