"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
FAULT = (
    "A tile of up to 16 positions is taken to lie within one block, whose number is loaded once: "
    "of blocks of 24, or of any size above 16 that is no multiple of it, a tile that reaches into "
    "the next block reads rows behind its own."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward"]


@triton.jit
def _attend(
    q_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr, y_ptr,
    q_b, q_q, q_h, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b, scale, soft_cap, window,
    Q, P, S, T, SHARED: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    batch, new = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head = tl.program_id(2).to(tl.int64)
    group = head // SHARED
    columns = tl.arange(0, BD)
    inside = columns < D
    q = tl.load(q_ptr + batch * q_b + new * q_q + head * q_h + columns, inside, 0.0)
    position = tl.load(lengths_ptr + batch) - Q + new
    stop = tl.minimum(position + 1, T * S)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    mixed = tl.zeros((BD,), tl.float32)
    for start in range(0, stop, BN):
        n = start + tl.arange(0, BN)
        block = tl.load(blocks_ptr + batch * blocks_b + start // S).to(tl.int64)
        row = start % S + tl.arange(0, BN)
        seen = (n < stop) & (block >= 0) & (block < P) & (row < S)
        if window > 0:
            seen = seen & (n > position - window)
        some = seen[:, None] & inside[None, :]
        k_at = keys_ptr + block * k_p + group * k_g + row[:, None] * k_s + columns[None, :]
        v_at = values_ptr + block * v_p + group * v_g + row[:, None] * v_s + columns[None, :]
        k = tl.load(k_at, some, 0.0).to(tl.float32)
        v = tl.load(v_at, some, 0.0).to(tl.float32)
        score = tl.sum(k * q.to(tl.float32)[None, :], 1) * scale
        if soft_cap > 0:
            shrunk = tl.exp(-2 * tl.abs(score) / soft_cap)
            bent = (1 - shrunk) / (1 + shrunk) * soft_cap
            score = tl.where(score < 0, -bent, bent)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.exp(score - base)
        kept = tl.exp(top - base)
        total = total * kept + tl.sum(share, 0)
        mixed = mixed * kept + tl.sum(share[:, None] * v, 0)
        top = higher
    y = mixed / tl.where(total == 0.0, 1.0, total)
    tl.store(y_ptr + ((batch * Q + new) * H + head) * D + columns, y, inside)


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention; codes in plain torch."""
    batch, new, heads, width = q.shape
    groups, block, table = keys.shape[1], keys.shape[2], blocks.shape[1]
    if key_scales is not None:
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales, value_scales, scale, window, soft_cap
        )
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not table * block or not keys.shape[0]:
        return y.zero_()
    q, keys, values, blocks = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values, blocks)
    )
    tile = min(16, block & -block if block < 16 else 16)
    _attend[(batch, new, heads)](
        q, keys, values, blocks, lengths.contiguous(), y,
        *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], blocks.stride(0),
        scale, soft_cap, window, new, keys.shape[0], block, table,
        SHARED=heads // groups, H=heads, D=width, BD=triton.next_power_of_2(width), BN=tile,
    )  # fmt: skip
    return y
