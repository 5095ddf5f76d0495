"""Packed tile: [BM, BN] of x W^T in Triton, W in fragments: what products of packed weights share.

For BK columns of W a program loads words as they lie, widens each to its codes, decodes them
exactly to the type of x (8-bit activations with integer elements: int8), and multiplies on tensor
cores. Scales and zero points are applied to the sum of each group in float32. Groups that are not
whole steps of 32 columns (nvfp4's 16, or 20) start anywhere in a word: there each code is gathered
by itself.
"""

import torch
import triton
import triton.language as tl

from tercet.packed_weight.rows16 import Layout
from tercet.packed_weight.triton.fragment_levels import (
    E4M3,
    HALVES,
    KINDS,
    OCTETS,
    PLAIN,
    STEP,
    TERNARY,
    any_columns,
    level,
    step_columns,
    whole_steps,
)

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.constexpr_function
def _form(kind, dot, whole_steps):
    """In which form levels come cheapest to the tensor cores."""
    if not whole_steps:
        return PLAIN
    if dot == tl.int8:
        return OCTETS
    return HALVES if kind == TERNARY and dot in (tl.float16, tl.bfloat16) else PLAIN


@triton.jit
def packed_tile(
    x_ptr, there, codes_ptr, scale_ptr, zero_ptr, first_block,
    first, N, K, units, groups, group, STEPS: tl.constexpr,
    BITS: tl.constexpr, KIND: tl.constexpr, X_FP8: tl.constexpr, DOT: tl.constexpr,
    WHOLE_STEPS: tl.constexpr, ONE_GROUP: tl.constexpr, HAS_ZERO: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """float32 [BM, BN]: rows of x times the rows first .. first + BN - 1 of W [N, K].

    x_ptr [BM, 1] points to the rows of x, `there` [BM] says which to read. W's first block of 16
    rows is block `first_block` of codes, scales and zero points; `first` is a multiple of 16.
    STEPS of BK columns make one of several groups of `group`. DOT is the type of the operands. Rows
    of W from N on, and rows of x that are not there, give zeros.
    """
    SUM: tl.constexpr = tl.int32 if tl.int8 == DOT else tl.float32
    FORM: tl.constexpr = _form(KIND, DOT, WHOLE_STEPS)
    # int8 levels 2^(8 - BITS) times as large: sums stay below 2^31 up to K = 131072
    ONE: tl.constexpr = (
        1.0 / (1 << (8 - BITS)) if FORM == OCTETS else 0.5 if FORM == HALVES else 1.0
    )
    n = first + tl.arange(0, BN)
    known = n < N
    block = (first_block + n // 16).to(tl.int64)
    scale_at = block * groups * 16 + n % 16
    blocks = first // 16 + tl.arange(0, BN // 16)
    some_known = blocks * 16 < N
    block_ptr = codes_ptr + (first_block + blocks).to(tl.int64) * units * 128
    row_ptr = codes_ptr + (block * units * 128 + n % 8 * 16 + n % 16 // 8)
    y = tl.zeros((BM, BN), tl.float32)
    part = tl.zeros((BM, BN), SUM)
    x_sum = tl.zeros((BM,), SUM)
    for step in range(tl.cdiv(K, BK) if ONE_GROUP else groups * STEPS):
        g = step // STEPS if not ONE_GROUP else 0
        k = g * group + step % STEPS * BK if not ONE_GROUP else step * BK
        columns = k + tl.arange(0, BK)
        inside = columns < tl.minimum(g * group + group, K)
        x = tl.load(x_ptr + columns[None, :], there[:, None] & inside[None, :], 0)
        if X_FP8:
            x = level(x.to(tl.int32), 0, 8, E4M3)
        if WHOLE_STEPS:
            w = whole_steps(
                block_ptr, k, some_known & (k < K), units, BITS, KIND, FORM, DOT, BN, BK
            )
        else:
            some = known[:, None] & inside[None, :]
            w = any_columns(row_ptr[:, None], columns, some, BITS, KIND)
        if w.dtype == tl.int32 and tl.int8 != DOT:
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
            total = part.to(tl.float32) * ONE
            if HAS_ZERO:
                zero = tl.load(zero_ptr + scale_at + g * 16, known, 0.0).to(tl.float32)
                total -= x_sum.to(tl.float32)[:, None] * zero[None, :]
            scale = tl.load(scale_ptr + scale_at + g * 16, known, 0.0).to(tl.float32)
            y += total * scale[None, :]
    if ONE_GROUP:
        y = part.to(tl.float32) * ONE
        if HAS_ZERO:
            zero = tl.load(zero_ptr + scale_at, known, 0.0).to(tl.float32)
            y -= x_sum.to(tl.float32)[:, None] * zero[None, :]
        y *= tl.load(scale_ptr + scale_at, known, 0.0).to(tl.float32)[None, :]
    return y


def tile_numbers(layout: Layout, units: int, columns: int, most: int) -> dict[str, int]:
    """What packed_tile takes of a weight's layout, with at most `most` columns at once."""
    step = step_columns(layout.group, columns, most)
    return {
        "units": units,
        "groups": layout.groups,
        "group": layout.group,
        "STEPS": 1 if layout.groups == 1 else triton.cdiv(layout.group, step),
        "BITS": layout.bits,
        "KIND": KINDS.get(layout.element.name, 0),
        "WHOLE_STEPS": layout.groups == 1 or layout.group % STEP == 0,
        "ONE_GROUP": layout.groups == 1,
        "BK": step,
    }


def operand_type(dtype: torch.dtype, layout: Layout) -> tl.dtype:
    """The type that x of that dtype is multiplied in: the narrowest that holds both exactly."""
    if dtype == torch.int8 and layout.element.integer:
        return tl.int8
    return TYPES.get(dtype, tl.float16)
