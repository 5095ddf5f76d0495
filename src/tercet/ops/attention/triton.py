"""attention in Triton: a tile of queries walks over tiles of positions (FlashAttention-2).

Dao 2023, arXiv:2307.08691. A program takes BM queries of one head and keeps the largest score, the
sum of exponentials and the mixed values of each in registers. Only tiles on the diagonal or on a
window's edge are masked. The last queries see most and begin first.
"""

from math import e, log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.tuned import configuration

# lanes of a matrix product on tensor cores
_FEWEST = 16
_LOG2_E = tl.constexpr(1.4426950408889634)
# float16 has no exponents for shares below 2^-24 of the largest: all are multiplied by 2^12
_SHIFT = {torch.float16: 12.0}


@triton.jit
def _see(
    start, stop, top, total, mixed, q, k_at, v_at, position, columns,
    k_n, v_n, N, scale, soft_cap, window,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    MASKED: tl.constexpr, SHIFT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The running softmax of queries [BM, BD] over positions from start to stop.

    Scores are in bits: `scale`, and what caps give, are times log2(e).
    """
    inside = columns < D
    for first in range(start, stop, BN):
        n = first + tl.arange(0, BN)
        rows = n.to(tl.int64)
        if MASKED:
            known = n < N
            k = tl.load(k_at + rows[None, :] * k_n, known[None, :] & inside[:, None], 0.0)
            v = tl.load(v_at + rows[:, None] * v_n, known[:, None] & inside, 0.0)
        else:
            k = tl.load(k_at + rows[None, :] * k_n, inside[:, None], 0.0)
            v = tl.load(v_at + rows[:, None] * v_n, inside[None, :], 0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CAPPED:
            # tanh by the exponential of a number below 0, which cannot overflow
            shrunk = tl.exp2(-2 * _LOG2_E * tl.abs(score) / soft_cap)
            bent = (1 - shrunk) / (1 + shrunk) * (soft_cap * _LOG2_E)
            score = tl.where(score < 0, -bent, bent)
        if MASKED:
            seen = known[None, :]
            if CAUSAL:
                seen = seen & (n[None, :] <= position[:, None])
            if WINDOWED:
                seen = seen & (n[None, :] > position[:, None] - window)
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        # rows that have seen nothing yet: -inf minus itself is NaN
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        share = tl.exp2(score - (base - SHIFT)[:, None])
        kept = tl.exp2(top - base)
        total = total * kept + tl.sum(share, 1)
        mixed = tl.dot(share.to(v.dtype), v, mixed * kept[:, None], input_precision="ieee")
        top = higher
    return top, total, mixed


@triton.jit
def _attend(
    q_ptr, keys_ptr, values_ptr, y_ptr,
    q_b, q_t, q_h, k_b, k_g, k_n, v_b, v_g, v_n, scale, soft_cap, window, T, N,
    H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SHIFT: tl.constexpr,
    BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    new, columns = tile * BM + tl.arange(0, BM), tl.arange(0, BD)
    present = (new < T)[:, None] & (columns < D)
    q_at = q_ptr + batch * q_b + head * q_h + new.to(tl.int64)[:, None] * q_t + columns
    q = tl.load(q_at, present, 0.0)
    group = head // SHARED
    k_at = keys_ptr + batch * k_b + group * k_g + columns[:, None]
    v_at = values_ptr + batch * v_b + group * v_g + columns
    start, stop, whole, middle = 0, N, 0, N // BN * BN
    position = tl.zeros((BM,), tl.int32)
    if CAUSAL:
        position = N - T + new
        first = N - T + tile * BM
        stop = tl.minimum(N, first + BM)
        middle = tl.maximum(tl.minimum(N, first + 1), 0) // BN * BN
        if WINDOWED:
            start = tl.maximum(first - window + 1, 0) // BN * BN
            whole = tl.cdiv(tl.maximum(first + BM - window, 0), BN) * BN
            middle = tl.maximum(middle, tl.minimum(whole, stop))
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, BD), tl.float32)
    if WINDOWED:
        top, total, mixed = _see(
            start, tl.minimum(whole, stop), top, total, mixed, q, k_at, v_at, position, columns,
            k_n, v_n, N, scale, soft_cap, window, D, CAUSAL, WINDOWED, CAPPED, True, SHIFT, BN,
        )  # fmt: skip
    top, total, mixed = _see(
        whole, middle, top, total, mixed, q, k_at, v_at, position, columns,
        k_n, v_n, N, scale, soft_cap, window, D, CAUSAL, WINDOWED, CAPPED, False, SHIFT, BN,
    )  # fmt: skip
    top, total, mixed = _see(
        middle, stop, top, total, mixed, q, k_at, v_at, position, columns,
        k_n, v_n, N, scale, soft_cap, window, D, CAUSAL, WINDOWED, CAPPED, True, SHIFT, BN,
    )  # fmt: skip
    y = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    y_at = y_ptr + ((batch * T + new)[:, None] * H + head) * D + columns
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), present)


def _default(width: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles whose queries, keys, values and sums fit, by the bytes of a row."""
    size = max(_FEWEST, width) * dtype.itemsize
    if size <= 128:
        return {"BM": 128, "BN": 64, "num_warps": 4, "num_stages": 3}
    if size <= 256:
        return {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2}
    if size <= 512:
        return {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2}
    return {"BM": 32, "BN": 16, "num_warps": 4, "num_stages": 2}


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
    sizes = {"B": batch, "T": new, "H": heads, "G": groups, "N": length, "D": width}
    options = configuration("attention", "triton", sizes, _default(width, q.dtype))
    windowed = 0 < window < length
    _attend[(triton.cdiv(new, options["BM"]), heads, batch)](
        q, keys, values, y,
        *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        scale if soft_cap else scale * log2(e), soft_cap, min(window, length), new, length,
        H=heads, SHARED=heads // groups, D=width,
        CAUSAL=causal, WINDOWED=windowed, CAPPED=soft_cap != 0.0,
        SHIFT=_SHIFT.get(q.dtype, 0.0), BD=max(_FEWEST, triton.next_power_of_2(width)), **options,
    )  # fmt: skip
    return y
