"""append_kv in Triton for keys and values in 4 bits: a program takes a head of a new position.

It holds both halves of a head, as `int4_rows` packs and turns them; what a column is rotated with
is loaded beside it.
"""

import triton
import triton.language as tl

from tercet.kernel.device.dependent_launch import begin
from tercet.packed_weight.triton.int4_quantizer import quantize, turn


@triton.jit
def _rotated(x_ptr, norm_ptr, cos_ptr, sin_ptr, root, columns, inside, R, NORMS: tl.constexpr):
    """Some columns of a head, normalized and rotated, float32; 0 outside."""
    x = tl.load(x_ptr + columns, inside, 0.0).to(tl.float32)
    first, turned = columns < R, inside & (columns < 2 * R)
    partner, pair = tl.where(first, columns + R, columns - R), tl.where(first, columns, columns - R)
    other = tl.load(x_ptr + partner, turned, 0.0).to(tl.float32)
    if NORMS:
        x = x * root * tl.load(norm_ptr + columns, inside, 0.0).to(tl.float32)
        other = other * root * tl.load(norm_ptr + partner, turned, 0.0).to(tl.float32)
    cos = tl.load(cos_ptr + pair, turned, 1.0).to(tl.float32)
    sin = tl.load(sin_ptr + pair, turned, 0.0).to(tl.float32)
    return tl.where(turned, x * cos + tl.where(first, -other, other) * sin, x)


@triton.jit
def append_int4(
    qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr,
    key_scales_ptr, value_scales_ptr, query_norm_ptr, key_norm_ptr, q_ptr, key_offset_ptr,
    qkv_b, qkv_q, angle_l, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b,
    k_scale_p, k_scale_g, k_scale_s, v_scale_p, v_scale_g, v_scale_s, eps,
    Q, L, P, S, T,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NORMS: tl.constexpr,
    OFFSET: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """HALF: D / 2 and more, a power of two, 16 at least. BLOCK: what `turn` mixes."""
    begin(PDL)
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, new = (token // Q).to(tl.int64), (token % Q).to(tl.int64)
    columns = tl.arange(0, HALF)
    inside = columns < D // 2
    position = tl.load(lengths_ptr + batch) - Q + new
    known = (position >= 0) & (position < T * S) & (position < L)
    at = tl.where(known, position, 0).to(tl.int64)
    block = tl.load(blocks_ptr + batch * blocks_b + at // S, known & (head >= H), -1).to(tl.int64)
    held = inside & (block >= 0) & (block < P)
    x_ptr = qkv_ptr + batch * qkv_b + new * qkv_q + head * D
    if head >= H + G:
        first = tl.load(x_ptr + columns, inside, 0.0).to(tl.float32)
        second = tl.load(x_ptr + D // 2 + columns, inside, 0.0).to(tl.float32)
        group = head - H - G
        y_ptr = values_ptr + block * v_p + group * v_g + (at % S) * v_s
        scale_ptr = value_scales_ptr + block * v_scale_p + group * v_scale_g + (at % S) * v_scale_s
    else:
        norm_ptr = key_norm_ptr
        if head < H:
            norm_ptr = query_norm_ptr
        root = 1.0
        if NORMS:
            low = tl.load(x_ptr + columns, inside, 0.0).to(tl.float32)
            high = tl.load(x_ptr + D // 2 + columns, inside, 0.0).to(tl.float32)
            root = 1 / tl.sqrt_rn(tl.sum(low * low + high * high, 0) / D + eps)
        cos_at, sin_at = cos_ptr + at * angle_l, sin_ptr + at * angle_l
        first = _rotated(x_ptr, norm_ptr, cos_at, sin_at, root, columns, inside, R, NORMS)
        second = _rotated(
            x_ptr, norm_ptr, cos_at, sin_at, root, tl.where(inside, D // 2 + columns, D), inside, R,
            NORMS,
        )  # fmt: skip
        first, second = turn(first, second, BLOCK, HALF)
        group = head - H
        if OFFSET:
            offset_at, some = key_offset_ptr + group * D, inside & (head >= H)
            first = first - tl.load(offset_at + columns, some, 0.0)
            second = second - tl.load(offset_at + D // 2 + columns, some, 0.0)
        y_ptr = keys_ptr + block * k_p + group * k_g + (at % S) * k_s
        scale_ptr = key_scales_ptr + block * k_scale_p + group * k_scale_g + (at % S) * k_scale_s
    if head < H:
        q_at = q_ptr + (token.to(tl.int64) * H + head) * D
        dtype = q_ptr.dtype.element_ty
        # where a position is none, q is 0
        tl.store(q_at + columns, tl.where(known, first, 0.0).to(dtype), inside)
        tl.store(q_at + D // 2 + columns, tl.where(known, second, 0.0).to(dtype), inside)
    else:
        codes, step, least = quantize(first, second, inside, HALF)
        tl.store(y_ptr + columns, codes, held)
        groups = tl.arange(0, HALF // 16)
        real = (groups < (D // 2 + 15) // 16) & (block >= 0) & (block < P)
        tl.store(scale_ptr + 2 * groups, step.to(tl.bfloat16), real)
        tl.store(scale_ptr + 2 * groups + 1, least.to(tl.bfloat16), real)
