"""rope in Triton: q and k in one launch, the angles of a token read once a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor

OP = "rope"
FAULT = (
    "Sin is read with the strides of cos: wrong rotations where cos and sin are laid out "
    "differently (one a slice, or expanded, or transposed in batch and position, the other "
    "dense); equal layouts are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


@triton.jit
def _turn_heads(
    x_ptr, y_ptr, batch, position, present, cos, sin, stride_b, stride_s, stride_h,
    S, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """cos, sin [TOKENS, 1, PAIRS] in float32; batch, position, present [TOKENS]."""
    into = x_ptr + (batch * stride_b + position * stride_s)[:, None, None]
    out = y_ptr + ((batch * S + position) * (H * D))[:, None, None]
    for first in range(0, H, HEADS):
        heads = first + tl.arange(0, HEADS)[None, :, None]
        some = present[:, None, None] & (heads < H)
        x_at, y_at = into + heads.to(tl.int64) * stride_h, out + heads * D
        if INTERLEAVED:
            columns = tl.arange(0, 2 * PAIRS)[None, None, :]
            inside = some & (columns < 2 * R)
            x = tl.load(x_at + columns, inside, 0.0).to(tl.float32)
            x1, x2 = tl.split(tl.reshape(x, (x.shape[0], HEADS, PAIRS, 2)))
            y = tl.join(x1 * cos - x2 * sin, x2 * cos + x1 * sin)
            tl.store(y_at + columns, tl.reshape(y, (x.shape[0], HEADS, 2 * PAIRS)), inside)
        else:
            columns = tl.arange(0, PAIRS)[None, None, :]
            inside = some & (columns < R)
            x1 = tl.load(x_at + columns, inside, 0.0).to(tl.float32)
            x2 = tl.load(x_at + R + columns, inside, 0.0).to(tl.float32)
            tl.store(y_at + columns, x1 * cos - x2 * sin, inside)
            tl.store(y_at + R + columns, x2 * cos + x1 * sin, inside)
        if REST:
            columns = 2 * R + tl.arange(0, REST)[None, None, :]
            inside = some & (columns < D)
            tl.store(y_at + columns, tl.load(x_at + columns, inside, 0.0), inside)


@triton.jit
def _turn(
    q_ptr, k_ptr, cos_ptr, sin_ptr, out_q_ptr, out_k_ptr,
    T, S, q_b, q_s, q_h, k_b, k_s, k_h, angle_b, angle_s,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    INVERSE: tl.constexpr, INTERLEAVED: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    present = tokens < T
    batch, position = (tokens // S).to(tl.int64), (tokens % S).to(tl.int64)
    pairs = tl.arange(0, PAIRS)[None, None, :]
    at = (batch * angle_b + position * angle_s)[:, None, None] + pairs
    known = present[:, None, None] & (pairs < R)
    cos = tl.load(cos_ptr + at, known, 0.0).to(tl.float32)
    sin = tl.load(sin_ptr + at, known, 0.0).to(tl.float32)
    if INVERSE:
        sin = -sin
    _turn_heads(
        q_ptr, out_q_ptr, batch, position, present, cos, sin, q_b, q_s, q_h,
        S, H, D, R, INTERLEAVED, HEADS, PAIRS, REST,
    )  # fmt: skip
    _turn_heads(
        k_ptr, out_k_ptr, batch, position, present, cos, sin, k_b, k_s, k_h,
        S, G, D, R, INTERLEAVED, HEADS, PAIRS, REST,
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    return _launch(q, k, cos, sin, interleaved, "forward")


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle."""
    return _launch(grad_q, grad_k, cos, sin, interleaved, "backward")


def _launch(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, direction: str
) -> tuple[Tensor, Tensor]:
    batch, s, h, d = q.shape
    g, r = k.shape[2], cos.shape[-1]
    out_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    out_k = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if not out_q.numel() + out_k.numel():
        return out_q, out_k
    q, k, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, cos, sin))
    options = {"TOKENS": 4, "HEADS": 16, "num_warps": 4}
    tokens = options.pop("TOKENS")
    heads = min(options.pop("HEADS"), triton.next_power_of_2(max(h, g)))
    _turn[(triton.cdiv(batch * s, tokens),)](
        q, k, cos, sin, out_q, out_k, batch * s, s, *q.stride()[:3], *k.stride()[:3],
        cos.stride(0) if cos.dim() == 3 else 0, cos.stride(-2),
        H=h, G=g, D=d, R=r, INVERSE=direction == "backward", INTERLEAVED=interleaved,
        TOKENS=tokens, HEADS=heads, PAIRS=triton.next_power_of_2(max(r, 1)),
        REST=triton.next_power_of_2(d - 2 * r) if d > 2 * r else 0, **options,
    )  # fmt: skip
    return out_q, out_k
