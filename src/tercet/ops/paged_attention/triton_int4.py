"""paged_attention in Triton over keys and values in 4 bits, as `triton.py` divides it.

A byte holds a column of each half of a head, so halves are multiplied apart. Codes become numbers
in registers; each goes into its products in two parts, the rounded number and what was rounded
away, as shares do.
"""

import triton
import triton.language as tl

from tercet.kernel.device.dependent_launch import begin


@triton.jit
def _numbers(codes_ptr, scales_ptr, at, scale_at, columns, inside, known):
    """Both halves [BN, HALF] of rows in 4 bits, float32."""
    some = known[:, None] & inside[None, :]
    codes = tl.load(codes_ptr + at[:, None] + columns[None, :], some, 0).to(tl.int32)
    group = 2 * (columns // 16)
    step = tl.load(scales_ptr + scale_at[:, None] + group[None, :], some, 0.0).to(tl.float32)
    least = tl.load(scales_ptr + scale_at[:, None] + group[None, :] + 1, some, 0.0).to(tl.float32)
    low, high = (codes & 15).to(tl.float32), (codes >> 4).to(tl.float32)
    return low * step + least, high * step + least


@triton.jit
def _multiply(a, b, sums, EXACT: tl.constexpr):
    """sums + a b of float32 a and b, of each two parts of bfloat16 unless EXACT."""
    if EXACT:
        return tl.dot(a, b, sums, input_precision="ieee")
    a_coarse, b_coarse = a.to(tl.bfloat16), b.to(tl.bfloat16)
    a_fine = (a - a_coarse.to(tl.float32)).to(tl.bfloat16)
    b_fine = (b - b_coarse.to(tl.float32)).to(tl.bfloat16)
    sums = tl.dot(a_coarse, b_coarse, sums)
    sums = tl.dot(a_coarse, b_fine, sums)
    return tl.dot(a_fine, b_coarse, sums)


@triton.jit
def attend_int4(
    q_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr, key_scales_ptr, value_scales_ptr,
    y_ptr, sums_ptr, tops_ptr,
    q_b, q_q, q_h, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b,
    k_scale_p, k_scale_g, k_scale_s, v_scale_p, v_scale_g, v_scale_s, scale, soft_cap,
    Q, P, S, T, WINDOW,
    G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, CAPPED: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, BN: tl.constexpr,
    EXACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """HALF: D / 2 and more, a power of two, 16 at least. EXACT: products of float32."""
    begin(PDL)
    batch, group, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths_ptr + batch)
    rows = tl.arange(0, ROWS)
    new, head = rows // SHARED, group * SHARED + rows % SHARED
    present = rows < Q * SHARED
    columns = tl.arange(0, HALF)
    inside = columns < D // 2
    q_at = batch.to(tl.int64) * q_b + new.to(tl.int64) * q_q + head * q_h
    real = present[:, None] & inside
    q_low = tl.load(q_ptr + q_at[:, None] + columns, real, 0.0).to(tl.float32)
    q_high = tl.load(q_ptr + q_at[:, None] + D // 2 + columns, real, 0.0).to(tl.float32)
    position = length - Q + new
    # the first position that the first query sees
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - Q - WINDOW + 1, 0)
    stop = tl.minimum(length, T * S)
    each = tl.cdiv(tl.maximum(tl.cdiv(stop - first, BN), 0), SPLITS) * BN
    low = first + split * each
    high = tl.minimum(low + each, stop)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed_low = tl.zeros((ROWS, HALF), tl.float32)
    mixed_high = tl.zeros((ROWS, HALF), tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        known = n < high
        block = tl.load(blocks_ptr + batch.to(tl.int64) * blocks_b + n // S, known, -1)
        # whatever the table says, no other memory is read
        known = known & (block >= 0) & (block < P)
        block, row = block.to(tl.int64), n % S
        k_low, k_high = _numbers(
            keys_ptr, key_scales_ptr, block * k_p + group * k_g + row * k_s,
            block * k_scale_p + group * k_scale_g + row * k_scale_s, columns, inside, known,
        )  # fmt: skip
        score = tl.zeros((ROWS, BN), tl.float32)
        score = _multiply(q_low, tl.trans(k_low), score, EXACT)
        score = _multiply(q_high, tl.trans(k_high), score, EXACT) * scale
        if CAPPED:
            # tanh by the exponential of a number below 0, which cannot overflow
            shrunk = tl.exp(-2 * tl.abs(score) / soft_cap)
            bent = (1 - shrunk) / (1 + shrunk) * soft_cap
            score = tl.where(score < 0, -bent, bent)
        seen = known & (n[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (n[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        # rows that have seen nothing yet: -inf minus itself is NaN
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp(score - base[:, None])
        kept = tl.exp(top - base)
        total = total * kept + tl.sum(share, 1)
        v_low, v_high = _numbers(
            values_ptr, value_scales_ptr, block * v_p + group * v_g + row * v_s,
            block * v_scale_p + group * v_scale_g + row * v_scale_s, columns, inside, known,
        )  # fmt: skip
        mixed_low = _multiply(share, v_low, mixed_low * kept[:, None], EXACT)
        mixed_high = _multiply(share, v_high, mixed_high * kept[:, None], EXACT)
        top = higher
    if SPLITS == 1:
        over = tl.where(total == 0.0, 1.0, total)[:, None]
        y_at = ((batch.to(tl.int64) * Q + new) * (G * SHARED) + head) * D
        dtype = y_ptr.dtype.element_ty
        tl.store(y_ptr + y_at[:, None] + columns, (mixed_low / over).to(dtype), real)
        tl.store(y_ptr + y_at[:, None] + D // 2 + columns, (mixed_high / over).to(dtype), real)
    else:
        row_at = ((batch.to(tl.int64) * G + group) * SPLITS + split) * (Q * SHARED) + rows
        tl.store(tops_ptr + 2 * row_at, top, present)
        tl.store(tops_ptr + 2 * row_at + 1, total, present)
        tl.store(sums_ptr + row_at[:, None] * D + columns, mixed_low, real)
        tl.store(sums_ptr + row_at[:, None] * D + D // 2 + columns, mixed_high, real)
