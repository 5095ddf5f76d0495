"""append_kv in Triton: a program takes one head of a new position, and does all there is to it.

Both halves of a pair lie in one thread, so nothing is exchanged but a norm's sum. Where there are
many new positions it takes several, one beside the other: each is three loads that wait for each
other, and a GPU runs no more programs at once than it has places for.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.dependent_launch import begin, dependent_launch
from tercet.kernel.tuned import configuration
from tercet.ops.append_kv.triton_int4 import append_int4
from tercet.packed_weight import int4_rows
from tercet.packed_weight.cached_rows import is_turned, width_of
from tercet.packed_weight.row_codes import check_conversion, element_of
from tercet.packed_weight.triton.row_quantizer import absolute_bits, encode, scale_of

# new positions from which a program takes several, and how many
_MANY, _TOKENS = 256, 8


@triton.jit
def _quantize(
    first, second, last, y_at, scale_at, held, first_in, last_in, R, pairs, rest, FP8: tl.constexpr
):
    """A row in three parts as codes and their scale."""
    one, other, same = first[None, :], second[None, :], last[None, :]
    most = tl.maximum(tl.max(absolute_bits(one), 1), tl.max(absolute_bits(other), 1))
    scale = scale_of(tl.maximum(most, tl.max(absolute_bits(same), 1)), FP8)
    tl.store(y_at + pairs[None, :], encode(one, scale, FP8)[0], (held & first_in)[None, :])
    tl.store(y_at + R + pairs[None, :], encode(other, scale, FP8)[0], (held & first_in)[None, :])
    tl.store(y_at + rest[None, :], encode(same, scale, FP8)[0], (held & last_in)[None, :])
    tl.store(scale_at + tl.arange(0, 1), scale, held & (tl.arange(0, 1) == 0))


@triton.jit
def _append(
    qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr,
    key_scales_ptr, value_scales_ptr, query_norm_ptr, key_norm_ptr, q_ptr,
    qkv_b, qkv_q, angle_l, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b,
    k_scale_p, k_scale_g, k_scale_s, v_scale_p, v_scale_g, v_scale_s, eps,
    B, Q, L, P, S, T, CODES: tl.constexpr,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NORMS: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, TOKENS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    head = tl.program_id(1).to(tl.int64)
    pairs, rest = tl.arange(0, PAIRS), 2 * R + tl.arange(0, REST)
    for each in tl.static_range(TOKENS):
        # what is left over does the last position again
        token = tl.minimum(tl.program_id(0) * TOKENS + each, B * Q - 1)
        batch, new = (token // Q).to(tl.int64), (token % Q).to(tl.int64)
        position = tl.load(lengths_ptr + batch) - Q + new
        known = (position >= 0) & (position < T * S) & (position < L)
        at = tl.where(known, position, 0).to(tl.int64)
        x_at = qkv_ptr + batch * qkv_b + new * qkv_q + head * D
        first = tl.load(x_at + pairs, pairs < R, 0.0)
        second = tl.load(x_at + R + pairs, pairs < R, 0.0)
        last = tl.load(x_at + rest, rest < D, 0.0)
        block = tl.load(blocks_ptr + batch * blocks_b + at // S, known & (head >= H), -1).to(
            tl.int64
        )
        held = (block >= 0) & (block < P)
        if head >= H + G:
            value_at = values_ptr + block * v_p + (head - H - G) * v_g + (at % S) * v_s
            if CODES != 0:
                scale_at = block * v_scale_p + (head - H - G) * v_scale_g + (at % S) * v_scale_s
                _quantize(
                    first.to(tl.float32), second.to(tl.float32), last.to(tl.float32),
                    value_at, value_scales_ptr + scale_at, held, pairs < R, rest < D, R, pairs,
                    rest, CODES == 2,
                )  # fmt: skip
            else:
                tl.store(value_at + pairs, first, held & (pairs < R))
                tl.store(value_at + R + pairs, second, held & (pairs < R))
                tl.store(value_at + rest, last, held & (rest < D))
        else:
            one, other, same = first.to(tl.float32), second.to(tl.float32), last.to(tl.float32)
            if NORMS:
                squares = tl.sum(one * one, 0) + tl.sum(other * other, 0) + tl.sum(same * same, 0)
                root = 1 / tl.sqrt_rn(squares / D + eps)
                norm_ptr = key_norm_ptr
                if head < H:
                    norm_ptr = query_norm_ptr
                one = one * root * tl.load(norm_ptr + pairs, pairs < R, 0.0).to(tl.float32)
                other = other * root * tl.load(norm_ptr + R + pairs, pairs < R, 0.0).to(tl.float32)
                same = same * root * tl.load(norm_ptr + rest, rest < D, 0.0).to(tl.float32)
            angles = known & (pairs < R)
            cos = tl.load(cos_ptr + at * angle_l + pairs, angles, 0.0).to(tl.float32)
            sin = tl.load(sin_ptr + at * angle_l + pairs, angles, 0.0).to(tl.float32)
            # where a position is none, q is 0
            dtype = q_ptr.dtype.element_ty
            turned = tl.where(known, one * cos - other * sin, 0.0)
            beside = tl.where(known, other * cos + one * sin, 0.0)
            kept = tl.where(known, same, 0.0)
            if head < H:
                y_at = q_ptr + (token.to(tl.int64) * H + head) * D
                tl.store(y_at + pairs, turned.to(dtype), pairs < R)
                tl.store(y_at + R + pairs, beside.to(dtype), pairs < R)
                tl.store(y_at + rest, kept.to(dtype), rest < D)
            else:
                key_at = keys_ptr + block * k_p + (head - H) * k_g + (at % S) * k_s
                if CODES != 0:
                    scale_at = block * k_scale_p + (head - H) * k_scale_g + (at % S) * k_scale_s
                    _quantize(
                        turned, beside, kept, key_at, key_scales_ptr + scale_at, held, pairs < R,
                        rest < D, R, pairs, rest, CODES == 2,
                    )  # fmt: skip
                else:
                    tl.store(key_at + pairs, turned.to(dtype), held & (pairs < R))
                    tl.store(key_at + R + pairs, beside.to(dtype), held & (pairs < R))
                    tl.store(key_at + rest, kept.to(dtype), held & (rest < D))


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
    query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    key_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As op.append_kv_."""
    batch, new, total = qkv.shape
    (count, groups, block, _), width = keys.shape, width_of(keys)
    half = cos.shape[1]
    heads = total // width - 2 * groups if width else 0
    codes, strides, four_bits = 0, [0] * 6, is_turned(keys.dtype)
    if key_scales is not None and value_scales is not None:
        if not four_bits:
            element = element_of(keys.dtype)
            check_conversion(element, qkv.device)
            codes = 2 if element == "fp8_e4m3" else 1
        strides = [*key_scales.stride()[:3], *value_scales.stride()[:3]]
    q = torch.empty((batch, new, heads, width), dtype=qkv.dtype, device=qkv.device)
    table = blocks.shape[1]
    if not qkv.numel() or not table * block * cos.shape[0]:
        return q.zero_()
    qkv, blocks = (x if x.stride(-1) == 1 else x.contiguous() for x in (qkv, blocks))
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    sizes = {
        "B": batch, "Q": new, "H": heads, "G": groups, "D": width, "R": half,
        "L": cos.shape[0], "P": count, "S": block, "T": table,
    }  # fmt: skip
    default = {"num_warps": 1, "TOKENS": _TOKENS if batch * new >= _MANY else 1}
    options = configuration("append_kv", "triton", sizes, default)
    if query_norm is not None and key_norm is not None:
        # a program reads one of the two by one pointer
        same = query_norm.dtype == key_norm.dtype
        query_norm, key_norm = (
            (each if same else each.float()).contiguous() for each in (query_norm, key_norm)
        )
    pointers = (
        qkv, cos, sin, keys, values, blocks, lengths.contiguous(), key_scales, value_scales,
        query_norm, key_norm, q,
    )  # fmt: skip
    places = (
        *qkv.stride()[:2], cos.stride(0), *keys.stride()[:3], *values.stride()[:3],
        blocks.stride(0), *strides,
    )  # fmt: skip
    shape = {"H": heads, "G": groups, "D": width, "R": half, "NORMS": query_norm is not None}
    early = dependent_launch(qkv.device)
    if four_bits:
        append_int4[(batch * new, heads + 2 * groups)](
            *pointers, None if key_offset is None else key_offset.contiguous(), *places, eps, new,
            cos.shape[0], count, block, table, **shape, OFFSET=key_offset is not None,
            HALF=max(16, triton.next_power_of_2(width // 2)), BLOCK=int4_rows.block(width),
            num_warps=4, **early,
        )  # fmt: skip
        return q
    _append[(triton.cdiv(batch * new, options["TOKENS"]), heads + 2 * groups)](
        *pointers, *places, eps, batch, new, cos.shape[0], count, block, table, CODES=codes,
        **shape, PAIRS=triton.next_power_of_2(max(half, 1)),
        REST=triton.next_power_of_2(max(width - 2 * half, 1)), **early, **options,
    )  # fmt: skip
    return q
