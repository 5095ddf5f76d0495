"""linear_packed in Triton: every scheme, any shape, any GPU; reads fragments.

A program computes [BM, BN] of y. For BK columns of W it loads words as they lie, widens each to its
codes, [BN, units, fields, 8, 4], which in this order are [BN, BK], decodes them exactly to the
type of x (8-bit activations with integer elements: int8), and multiplies on tensor cores. Scales
and zero points are applied to the sum of each group in float32. Groups that are not whole steps of
32 columns (nvfp4's 16, or 20) start anywhere in a word: there each code is gathered by itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.interpreter import interpreting
from tercet.kernel.launch import as_rows
from tercet.kernel.rows16 import layout_of
from tercet.kernel.tuned import configuration
from tercet.ops.linear_packed.torch_path import finished

_KINDS = {"fp8_e4m3": 1, "fp8_e5m2": 2, "fp4_e2m1": 3}
_STEP = 32
_WIDEST = 128
_INTEGER, _E4M3, _E5M2 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _half(bits):
    """The float16 of the low 16 bits, as float32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _level(words, shift, BITS: tl.constexpr, KIND: tl.constexpr):
    """The level of the code at that bit of each word: int32 for integers, else float32; exact.

    A small float is a float16 with fewer bits: subnormals and all, up to a power of two.
    """
    code = (words >> shift) & ((1 << BITS) - 1)
    if KIND == _INTEGER:
        level = (words << (32 - BITS - shift)) >> (32 - BITS)
    elif KIND == _E4M3:
        level = _half(((code & 0x80) << 8) | ((code & 0x7F) << 7)) * 256.0
    elif KIND == _E5M2:
        level = _half(code << 8)
    else:
        level = _half(((code & 8) << 12) | ((code & 7) << 9)) * 16384.0
    return level


@triton.jit
def _whole_steps(
    row_ptr, k, inside,
    BITS: tl.constexpr, KIND: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Levels [BN, BK] from column k on, a multiple of 32 and of BK up to a unit.

    row_ptr [BN, 1, 1] points to the first word of each row in its block.
    """
    UNIT: tl.constexpr = 256 // BITS
    EACH: tl.constexpr = BK // UNIT if BK > UNIT else 1
    FIELDS: tl.constexpr = (BK if BK < UNIT else UNIT) // 32
    four = tl.arange(0, 8)
    word = (k // UNIT + tl.arange(0, EACH))[:, None] * 128 + four % 4 * 4 + four // 4 * 2
    words = tl.load(row_ptr + word[None, :, :], inside[:, None, None], 0)
    field = tl.arange(0, FIELDS)[:, None]
    if BK < UNIT:
        field += k % UNIT // 32
    shift = field * BITS + tl.arange(0, 4)[None, :] * 8
    levels = _level(words[:, :, None, :, None], shift[None, None, :, None, :], BITS, KIND)
    return tl.reshape(levels, (BN, BK))


@triton.jit
def _any_columns(row_ptr, columns, inside, BITS: tl.constexpr, KIND: tl.constexpr):
    """Levels [BN, BK] of columns that start anywhere; row_ptr [BN, 1] as for whole steps."""
    UNIT: tl.constexpr = 256 // BITS
    word = columns // UNIT * 128 + columns % 16 // 4 * 4 + columns % 32 // 16 * 2
    words = tl.load(row_ptr + word[None, :], inside, 0)
    shift = columns % UNIT // 32 * BITS + columns % 4 * 8
    return _level(words, shift[None, :], BITS, KIND)


@triton.jit
def _linear_packed(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, bias_ptr, residual_ptr, x_scale_ptr, y_ptr,
    M, N, K, x_stride, residual_stride, units, groups, group, steps,
    BITS: tl.constexpr, KIND: tl.constexpr, X_FP8: tl.constexpr, DOT: tl.constexpr,
    WHOLE_STEPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_X_SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M, N]; `steps` of BK columns make a group of `group`. DOT is the type of the operands."""
    SUM: tl.constexpr = tl.int32 if tl.int8 == DOT else tl.float32
    tiles = tl.cdiv(M, BM)
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) // tiles * BN + tl.arange(0, BN)
    wide_m = m.to(tl.int64)[:, None]
    x_ptr += wide_m * x_stride
    block = (n // 16).to(tl.int64)
    row_ptr = codes_ptr + (block * units * 128 + n % 8 * 16 + n % 16 // 8)
    scale_at = block * groups * 16 + n % 16
    known = n < N
    y = tl.zeros((BM, BN), tl.float32)
    part = tl.zeros((BM, BN), SUM)
    x_sum = tl.zeros((BM,), SUM)
    for step in range(groups * steps):
        g = step // steps
        k = g * group + step % steps * BK
        columns = k + tl.arange(0, BK)
        inside = columns < tl.minimum(g * group + group, K)
        x = tl.load(x_ptr + columns[None, :], (m < M)[:, None] & inside[None, :], 0)
        if X_FP8:
            x = _level(x.to(tl.int32), 0, 8, _E4M3)
        if WHOLE_STEPS:
            w = _whole_steps(row_ptr[:, None, None], k, known & (k < K), BITS, KIND, BN, BK)
        else:
            there = known[:, None] & inside[None, :]
            w = _any_columns(row_ptr[:, None], columns, there, BITS, KIND)
        if KIND == _INTEGER and tl.int8 != DOT:
            w = w.to(tl.float32)
        x = x.to(DOT)
        w = tl.trans(w.to(DOT))
        if not ONE_GROUP:
            part = tl.zeros((BM, BN), SUM)
            x_sum = tl.zeros((BM,), SUM)
        part = tl.dot(x, w, part, input_precision="ieee", out_dtype=SUM)
        if HAS_ZERO:
            x_sum += tl.sum(x.to(SUM), 1)
        if not ONE_GROUP:
            total = part.to(tl.float32)
            if HAS_ZERO:
                zero = tl.load(zero_ptr + scale_at + g * 16, known, 0.0).to(tl.float32)
                total -= x_sum.to(tl.float32)[:, None] * zero[None, :]
            scale = tl.load(scale_ptr + scale_at + g * 16, known, 0.0).to(tl.float32)
            y += total * scale[None, :]
    if ONE_GROUP:
        y = part.to(tl.float32)
        if HAS_ZERO:
            zero = tl.load(zero_ptr + scale_at, known, 0.0).to(tl.float32)
            y -= x_sum.to(tl.float32)[:, None] * zero[None, :]
        y *= tl.load(scale_ptr + scale_at, known, 0.0).to(tl.float32)[None, :]
    if HAS_X_SCALE:
        y *= tl.load(x_scale_ptr + m, m < M, 0.0)[:, None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)[None, :]
    written = (m < M)[:, None] & (n < N)[None, :]
    if HAS_RESIDUAL:
        at = wide_m * residual_stride + n[None, :]
        y += tl.load(residual_ptr + at, written, 0.0).to(tl.float32)
    tl.store(y_ptr + wide_m * N + n[None, :], y, written)


def forward(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, x_scale: Tensor | None, x_sum: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.linear_packed, on a weight in fragments."""
    del x_sum
    y = torch.empty((*x.shape[:-1], rows), dtype=out_dtype, device=x.device)
    if not y.numel() or not columns:
        return finished(y.float().zero_(), None, bias, residual, out_dtype)
    if activation != "none" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, activation)
    layout, flat = layout_of(scheme, rows, columns), as_rows(x)
    m = len(flat)
    kind = _KINDS.get(layout.element.name, 0)
    fp8 = flat.dtype == torch.float8_e4m3fn
    dot = {torch.int8: tl.float16 if kind else tl.int8, torch.float8_e4m3fn: tl.float16}.get(
        flat.dtype, _TYPES.get(flat.dtype)
    )
    sizes = {"M": m, "N": rows, "K": columns}
    options = dict(configuration("linear_packed", "triton", sizes, _default(m)))
    bk = _step_columns(layout.group, columns, options.pop("BK"))
    bm, bn = options.pop("BM"), options.pop("BN")
    held = as_rows(residual) if residual is not None else None
    _linear_packed[(triton.cdiv(m, bm) * triton.cdiv(rows, bn),)](
        flat.view(torch.uint8) if fp8 else flat, codes, scale, zero,
        bias.contiguous() if bias is not None else None, held,
        x_scale.reshape(-1).contiguous() if x_scale is not None else None, y,
        m, rows, columns, flat.stride(0), held.stride(0) if held is not None else 0,
        codes.shape[1], layout.groups, layout.group, triton.cdiv(layout.group, bk),
        BITS=layout.bits, KIND=kind, X_FP8=fp8, DOT=dot,
        WHOLE_STEPS=layout.groups == 1 or layout.group % _STEP == 0, ONE_GROUP=layout.groups == 1,
        HAS_ZERO=zero is not None, HAS_BIAS=bias is not None, HAS_RESIDUAL=held is not None,
        HAS_X_SCALE=x_scale is not None, BM=bm, BN=bn, BK=bk, **options,
    )  # fmt: skip
    return y


_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _step_columns(group: int, columns: int, most: int) -> int:
    """Columns at once: a power of two from 32 on that divides the group, or 32."""
    if group >= columns:
        return min(most, max(_STEP, triton.next_power_of_2(columns)))
    step = _STEP
    while step < most and group % (2 * step) == 0:
        step *= 2
    return step


def _default(m: int) -> dict[str, int]:
    """Narrow tiles for few tokens, so that every multiprocessor has some rows of W.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BM": 256 if m > 16 else 16, "BN": 128, "BK": _WIDEST, "num_warps": 4}
    if m <= 16:
        return {"BM": 16, "BN": 32, "BK": _WIDEST, "num_warps": 4}
    return {"BM": 32 if m <= 32 else 64, "BN": 64, "BK": 64, "num_warps": 4}
