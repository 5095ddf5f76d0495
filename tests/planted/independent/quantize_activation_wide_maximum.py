"""quantize_activation in Triton: a row lies in registers, or is read twice."""

import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.packed_weight.row_codes import Quantized, check_conversion, empty
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of, total

OP = "quantize_activation"
FAULT = (
    "A row that is walked (more than 32768 columns) takes its maximum from whole blocks of "
    "4096 only: a largest element behind them is clamped."
)
CAUGHT_BY = "forward"
DEVICE = "any"


_HELD = 32768


@triton.jit
def _held(
    x_ptr, codes_ptr, scale_ptr, sum_ptr,
    M, K, x_stride,
    FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows[:, None] < M) & (columns < K)
    wide = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + wide * x_stride + columns, inside, 0.0).to(tl.float32)
    scale = scale_of(tl.max(absolute_bits(x), 1), FP8)
    codes, units = encode(x, scale, FP8)
    tl.store(codes_ptr + wide * K + columns, codes, inside)
    tl.store(scale_ptr + rows, scale, rows < M)
    tl.store(sum_ptr + rows, total(units, FP8), rows < M)


@triton.jit
def _chunked(
    x_ptr, codes_ptr, scale_ptr, sum_ptr,
    M, K, x_stride,
    FP8: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) + tl.arange(0, ROWS)
    row = tl.program_id(0).to(tl.int64)
    bits = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in tl.range(0, K // BLOCK * BLOCK, BLOCK, num_stages=STAGES):
        columns = first + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + row * x_stride + columns, columns < K, 0.0).to(tl.float32)
        bits = tl.maximum(bits, absolute_bits(x))
    scale = scale_of(tl.max(bits, 1), FP8)
    units = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in tl.range(0, K, BLOCK, num_stages=STAGES):
        columns = first + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + row * x_stride + columns, columns < K, 0.0).to(tl.float32)
        codes, more = encode(x, scale, FP8)
        tl.store(codes_ptr + row * K + columns, codes, columns < K)
        units += more
    tl.store(scale_ptr + rows, scale, rows < M)
    tl.store(sum_ptr + rows, total(units, FP8, SUMS=True), rows < M)


def default_configuration(k: int) -> dict[str, int]:
    """At most 64 elements a thread where the row is held, 16 where it is walked."""
    warps = 8 if k > _HELD else min(max(triton.next_power_of_2(k) // 2048, 4), 16)
    return {"HELD": _HELD, "BLOCK": 4096, "STAGES": 2, "num_warps": warps}


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    check_conversion(element, x.device)
    codes, scale, row_sum = empty(x.shape, element, x.device)
    if not codes.numel():
        return codes, scale.zero_(), row_sum.zero_()
    rows = as_rows(x)
    m, k = rows.shape
    sizes = {"M": m, "K": k}
    options = dict(configuration("quantize_activation", "triton", sizes, default_configuration(k)))
    held, stages = options.pop("HELD"), options.pop("STAGES")
    wanted = triton.next_power_of_2(k)
    kernel, height, block = _chunked, 1, options.pop("BLOCK")
    if wanted <= held:
        kernel, block = _held, wanted
        height = min(max(1, 1024 // block), triton.next_power_of_2(m))
    else:
        options["STAGES"] = stages
    kernel[(triton.cdiv(m, height),)](
        rows, codes, scale, row_sum, m, k, rows.stride(0),
        FP8=element != "int8", ROWS=height, BLOCK=block, **options,
    )  # fmt: skip
    return codes, scale, row_sum
