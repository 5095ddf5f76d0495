"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

OP = "attention"
FAULT = (
    "The running maximum moves on only where scores rise by more than 20 bits, to spare the "
    "rescaling: shares of up to 2^20 do not fit float16, so one that rises by 16 to 20 bits is "
    "inf, and y NaN or inf; float32 and bfloat16 are right."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]

_RISE = 20.0


@triton.jit
def _attend(
    q_ptr, keys_ptr, values_ptr, y_ptr,
    q_b, q_t, q_h, k_b, k_g, k_n, v_b, v_g, v_n, scale, soft_cap, window, T, N,
    H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    RISE: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    new, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BD)
    present = (new < T)[:, None] & (columns < D)[None, :]
    q_at = q_ptr + batch * q_b + head * q_h + new.to(tl.int64)[:, None] * q_t + columns[None, :]
    q = tl.load(q_at, present, 0.0)
    k_at = keys_ptr + batch * k_b + head // SHARED * k_g + columns[:, None]
    v_at = values_ptr + batch * v_b + head // SHARED * v_g + columns[None, :]
    position = N - T + new
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, BD), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        rows, known = n.to(tl.int64), n < N
        k = tl.load(k_at + rows[None, :] * k_n, known[None, :] & (columns < D)[:, None], 0.0)
        v = tl.load(v_at + rows[:, None] * v_n, known[:, None] & (columns < D)[None, :], 0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if soft_cap > 0:
            shrunk = tl.exp(-2 * tl.abs(score) / soft_cap)
            bent = (1 - shrunk) / (1 + shrunk) * soft_cap
            score = tl.where(score < 0, -bent, bent)
        score *= 1.4426950408889634
        seen = known[None, :] & (new < T)[:, None]
        if CAUSAL:
            seen = seen & (n[None, :] <= position[:, None])
        if window > 0:
            seen = seen & (n[None, :] > position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        # a rise of a few bits is held by the exponent as well: then nothing is rescaled
        higher = tl.where(higher - top > RISE, higher, top)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp2(score - base[:, None])
        kept = tl.exp2(top - base)
        total = total * kept + tl.sum(share, 1)
        mixed = tl.dot(share.to(v.dtype), v, mixed * kept[:, None], input_precision="ieee")
        top = higher
    y = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    y_at = y_ptr + ((batch * T + new)[:, None] * H + head) * D + columns[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), present)


def forward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Tensor:
    """As op.attention."""
    batch, new, heads, width = q.shape
    groups, length = keys.shape[1], keys.shape[2]
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not length:
        return y.zero_()
    q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
    _attend[(triton.cdiv(new, 32), heads, batch)](
        q, keys, values, y, *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        scale, soft_cap, min(window, length), new, length,
        H=heads, SHARED=heads // groups, D=width, CAUSAL=causal, RISE=_RISE,
        BD=max(16, triton.next_power_of_2(width)), BM=32, BN=32,
    )  # fmt: skip
    return y
