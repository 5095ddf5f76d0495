"""paged_attention in Triton: split-K over the positions, then a merge (Flash-Decoding).

A program takes one key head of one sequence with all query heads that share it, and one of SPLITS
runs of positions, so that few sequences still fill the GPU. The runs follow from the sequence's
length, read on the GPU: one captured launch serves every length. Shares of softmax go into the
product in two parts, the rounded share and what was rounded away, so that the sum is as good as
float32's; the tensor cores are idle here anyway.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.dependent_launch import begin, dependent_launch
from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import configuration
from tercet.ops.paged_attention.triton_int4 import attend_int4
from tercet.packed_weight.cached_rows import is_turned

_MOST_SPLITS = 64
# lanes of a matrix product on tensor cores
_ROWS = 16
# how the kernel reads codes; 0 where keys and values are floats
_INT8, _FP8 = 1, 2
_CODES = {torch.int8: _INT8, torch.float8_e4m3fn: _FP8}


@triton.jit
def _decode(codes, CODES: tl.constexpr):
    """The values of codes, float32: int8, or e4m3 by its bits, for GPUs without that type too."""
    if CODES == 1:
        return codes.to(tl.float32)
    # the same digits as a float16, whose exponents begin at 2^-14 where e4m3's begin at 2^-6
    bits = codes.to(tl.int16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def _attend(
    q_ptr, keys_ptr, values_ptr, blocks_ptr, lengths_ptr, key_scales_ptr, value_scales_ptr,
    y_ptr, sums_ptr, tops_ptr,
    q_b, q_q, q_h, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b,
    k_scale_p, k_scale_g, k_scale_s, v_scale_p, v_scale_g, v_scale_s, scale, soft_cap,
    Q, P, S, T, WINDOW, CODES: tl.constexpr,
    G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, CAPPED: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    batch, group, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths_ptr + batch)
    rows = tl.arange(0, ROWS)
    new, head = rows // SHARED, group * SHARED + rows % SHARED
    present = rows < Q * SHARED
    columns = tl.arange(0, BD)
    inside = columns < D
    q_at = batch.to(tl.int64) * q_b + new.to(tl.int64) * q_q + head * q_h
    q = tl.load(q_ptr + q_at[:, None] + columns, present[:, None] & inside, 0.0)
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
    mixed = tl.zeros((ROWS, BD), tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        known = n < high
        block = tl.load(blocks_ptr + batch.to(tl.int64) * blocks_b + n // S, known, -1)
        # whatever the table says, no other memory is read
        known = known & (block >= 0) & (block < P)
        block, row = block.to(tl.int64), n % S
        k_at = block * k_p + group * k_g + row * k_s
        v_at = block * v_p + group * v_g + row * v_s
        k = tl.load(keys_ptr + k_at[None, :] + columns[:, None], known & inside[:, None], 0)
        v = tl.load(values_ptr + v_at[:, None] + columns, known[:, None] & inside, 0)
        if CODES != 0:
            k = _decode(k, CODES).to(q.dtype)
            # of float16's range shares times scales may have nothing left
            v = _decode(v, CODES).to(tl.float32 if q.dtype == tl.float32 else tl.bfloat16)
            key_scale_at = block * k_scale_p + group * k_scale_g + row * k_scale_s
            value_scale_at = block * v_scale_p + group * v_scale_g + row * v_scale_s
            key_scale = tl.load(key_scales_ptr + key_scale_at, known, 0.0)
            value_scale = tl.load(value_scales_ptr + value_scale_at, known, 0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CODES != 0:
            score = score * key_scale[None, :]
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
        if CODES != 0:
            share = share * value_scale[None, :]
        coarse = share.to(v.dtype)
        mixed = tl.dot(coarse, v, mixed * kept[:, None], input_precision="ieee")
        if v.dtype != tl.float32:
            fine = (share - coarse.to(tl.float32)).to(v.dtype)
            mixed = tl.dot(fine, v, mixed)
        top = higher
    if SPLITS == 1:
        y = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        y_at = ((batch.to(tl.int64) * Q + new) * (G * SHARED) + head) * D
        tl.store(
            y_ptr + y_at[:, None] + columns, y.to(y_ptr.dtype.element_ty), present[:, None] & inside
        )
    else:
        row_at = ((batch.to(tl.int64) * G + group) * SPLITS + split) * (Q * SHARED) + rows
        tl.store(tops_ptr + 2 * row_at, top, present)
        tl.store(tops_ptr + 2 * row_at + 1, total, present)
        tl.store(sums_ptr + row_at[:, None] * D + columns, mixed, present[:, None] & inside)


@triton.jit
def _merge(
    y_ptr, sums_ptr, tops_ptr, Q,
    G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    BS: tl.constexpr, BD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    batch, group, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits, columns = tl.arange(0, BS), tl.arange(0, BD)
    present, inside = splits < SPLITS, columns < D
    row_at = ((batch.to(tl.int64) * G + group) * SPLITS + splits) * (Q * SHARED) + row
    tops = tl.load(tops_ptr + 2 * row_at, present, float("-inf"))
    totals = tl.load(tops_ptr + 2 * row_at + 1, present, 0.0)
    top = tl.max(tops, 0)
    share = tl.exp(tops - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(totals * share, 0)
    some = (present & (totals > 0))[:, None] & inside
    sums = tl.load(sums_ptr + row_at[:, None] * D + columns, some, 0.0)
    y = tl.sum(sums * share[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    y_at = ((batch.to(tl.int64) * Q + row // SHARED) * G + group) * SHARED + row % SHARED
    tl.store(y_ptr + y_at * D + columns, y.to(y_ptr.dtype.element_ty), inside)


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention."""
    batch, new, heads, width = q.shape
    groups, block, table = keys.shape[1], keys.shape[2], blocks.shape[1]
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.numel() or not table * block or not keys.shape[0]:
        return y.zero_()
    q, keys, values, blocks = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values, blocks)
    )
    lengths, four_bits = lengths.contiguous(), is_turned(keys.dtype)
    codes = _CODES.get(keys.dtype, 0)
    if codes == _FP8:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    strides = [0] * 6
    if key_scales is not None and value_scales is not None:
        if four_bits:
            key_scales, value_scales = (
                each if each.stride(-1) == 1 else each.contiguous()
                for each in (key_scales, value_scales)
            )
        strides = [*key_scales.stride()[:3], *value_scales.stride()[:3]]
    sizes = {
        "B": batch, "Q": new, "H": heads, "G": groups, "D": width,
        "P": keys.shape[0], "S": block, "T": table,
    }  # fmt: skip
    options = {"BN": 16, "num_warps": 4}
    # what is tuned is `_attend`: rows in 4 bits take more registers
    if not four_bits:
        options = dict(configuration("paged_attention", "triton", sizes, options))
    shared, positions = heads // groups, table * block
    splits = _splits(batch * groups, positions, options["BN"], multiprocessors(q.device))
    rows = new * shared
    sums = torch.empty(
        (batch * groups * splits * rows * width if splits > 1 else 0,),
        dtype=torch.float32,
        device=q.device,
    )
    tops = torch.empty((2 * (sums.numel() // width),), dtype=torch.float32, device=q.device)
    wide, early = max(_ROWS, triton.next_power_of_2(width)), dependent_launch(q.device)
    pointers = (
        q, keys, values, blocks, lengths, key_scales, value_scales, y, sums, tops,
        *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3], blocks.stride(0), *strides,
        scale, soft_cap, new, keys.shape[0], block, table, window,
    )  # fmt: skip
    shape = {
        "G": groups, "SHARED": shared, "D": width, "CAPPED": soft_cap != 0.0, "SPLITS": splits,
        "ROWS": max(_ROWS, triton.next_power_of_2(rows)),
    }  # fmt: skip
    if four_bits:
        attend_int4[(batch, groups, splits)](
            *pointers, **shape, HALF=max(_ROWS, triton.next_power_of_2(width // 2)),
            EXACT=q.dtype == torch.float32, **early, **options,
        )  # fmt: skip
    else:
        _attend[(batch, groups, splits)](
            *pointers, **shape, CODES=codes, BD=wide, **early, **options
        )
    if splits > 1:
        _merge[(batch, groups, rows)](
            y, sums, tops, new, G=groups, SHARED=shared, D=width, SPLITS=splits,
            BS=triton.next_power_of_2(splits), BD=wide, num_warps=2, **early,
        )  # fmt: skip
    return y


def _splits(programs: int, positions: int, tile: int, processors: int) -> int:
    """Runs of positions that fill the GPU about twice, of a tile and more each."""
    wanted = triton.cdiv(2 * processors, programs)
    return max(1, min(wanted, triton.cdiv(positions, tile), _MOST_SPLITS))
