"""append_kv in Triton: a program takes one head of one new position, and does all there is to it.

Both halves of a pair lie in one thread, so nothing is exchanged but a norm's sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.dependent_launch import begin, dependent_launch
from tercet.kernel.tuned import configuration


@triton.jit
def _append(
    qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr,
    query_norm_ptr, key_norm_ptr, q_ptr,
    qkv_b, qkv_q, angle_l, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b, eps,
    Q, L, P, S, T,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NORMS: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token, head = tl.program_id(0), tl.program_id(1)
    batch, new = (token // Q).to(tl.int64), token % Q
    position = tl.load(lengths_ptr + batch) - Q + new
    known = (position >= 0) & (position < T * S) & (position < L)
    at = tl.where(known, position, 0)
    pairs, rest = tl.arange(0, PAIRS), 2 * R + tl.arange(0, REST)
    x_at = qkv_ptr + batch * qkv_b + new * qkv_q + head * D
    first = tl.load(x_at + pairs, pairs < R, 0.0)
    second = tl.load(x_at + R + pairs, pairs < R, 0.0)
    last = tl.load(x_at + rest, rest < D, 0.0)
    block = tl.load(blocks_ptr + batch * blocks_b + at // S, known & (head >= H), -1).to(tl.int64)
    held = (block >= 0) & (block < P)
    if head >= H + G:
        y_at = values_ptr + block * v_p + (head - H - G) * v_g + (at % S) * v_s
        tl.store(y_at + pairs, first, held & (pairs < R))
        tl.store(y_at + R + pairs, second, held & (pairs < R))
        tl.store(y_at + rest, last, held & (rest < D))
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
        turned = tl.where(known, one * cos - other * sin, 0.0).to(dtype)
        beside = tl.where(known, other * cos + one * sin, 0.0).to(dtype)
        kept = tl.where(known, same, 0.0).to(dtype)
        if head < H:
            y_at = q_ptr + (token.to(tl.int64) * H + head) * D
            tl.store(y_at + pairs, turned, pairs < R)
            tl.store(y_at + R + pairs, beside, pairs < R)
            tl.store(y_at + rest, kept, rest < D)
        else:
            y_at = keys_ptr + block * k_p + (head - H) * k_g + (at % S) * k_s
            tl.store(y_at + pairs, turned, held & (pairs < R))
            tl.store(y_at + R + pairs, beside, held & (pairs < R))
            tl.store(y_at + rest, kept, held & (rest < D))


def forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
) -> Tensor:  # fmt: skip
    """As op.append_kv_."""
    batch, new, total = qkv.shape
    count, groups, block, width = keys.shape
    half = cos.shape[1]
    heads = total // width - 2 * groups if width else 0
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
    options = configuration("append_kv", "triton", sizes, {"num_warps": 1})
    query_norm = query_norm.contiguous() if query_norm is not None else None
    key_norm = key_norm.contiguous() if key_norm is not None else None
    _append[(batch * new, heads + 2 * groups)](
        qkv, cos, sin, keys, values, blocks, lengths.contiguous(), query_norm, key_norm, q,
        *qkv.stride()[:2], cos.stride(0), *keys.stride()[:3], *values.stride()[:3],
        blocks.stride(0), eps, new, cos.shape[0], count, block, table,
        H=heads, G=groups, D=width, R=half, NORMS=query_norm is not None,
        PAIRS=triton.next_power_of_2(max(half, 1)),
        REST=triton.next_power_of_2(max(width - 2 * half, 1)), **dependent_launch(qkv.device),
        **options,
    )  # fmt: skip
    return q
