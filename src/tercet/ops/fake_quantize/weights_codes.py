"""Weights' codes: many weights of one width quantized by one launch, in Triton.

A row is read once: its scale, its codes, their packed fields, and how many differ from the last
are made of it in registers. The weights lie apart; a table on the device tells where.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.async_copy import copy_async
from tercet.ops.fake_quantize.weight_levels import (
    bounded_ratio,
    divided,
    largest_scale,
    level_of,
    mean_scale,
    rounded,
)
from tercet.packed_weight.triton.packed_codes import together
from tercet.packed_weight.triton.row_quantizer import absolute_bits

_TRITON = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
# columns of the table: first program, rows, and where the weight's tensors begin
_ENTRY = tl.constexpr(8)
_WIDEST, _TILE = 16384, 2048


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a rule says of a row: scale = 2 sum |w| / (K divisor), max |w| or step / divisor.

    Attributes:
        mean: whether it is the first.
        learned: whether it is the last.
        divisor: of it.
        dtype: that the scale is rounded to.
        lowest, highest: levels.
    """

    mean: bool
    learned: bool
    divisor: float
    dtype: torch.dtype
    lowest: int
    highest: int


@triton.jit
def _quantize(
    table_ptr, total_ptr, WEIGHTS, K, WIDTH,
    W: tl.constexpr, MEAN: tl.constexpr, LEARNED: tl.constexpr, DIVISOR: tl.constexpr,
    SCALE: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, BITS: tl.constexpr,
    COUNTING: tl.constexpr, MOST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program has ROWS rows of one weight. BITS 0: nothing is packed."""
    program = tl.program_id(0)
    each = tl.arange(0, MOST)
    firsts = tl.load(table_ptr + each * _ENTRY, each < WEIGHTS, 2**31)
    entry = table_ptr + (tl.sum((firsts <= program).to(tl.int32), 0) - 1) * _ENTRY
    row = (program - tl.load(entry)) * ROWS + tl.arange(0, ROWS)
    there = row < tl.load(entry + 1)
    w_ptr = tl.multiple_of(tl.load(entry + 2).to(tl.pointer_type(W)), 16)
    codes_ptr = tl.multiple_of(tl.load(entry + 3).to(tl.pointer_type(tl.int8)), 16)
    scale_ptr = tl.load(entry + 4).to(tl.pointer_type(tl.float32))
    column = tl.arange(0, BLOCK)[None, :]
    at = row.to(tl.int64)[:, None] * K + column
    inside = there[:, None] & (column < K)
    w = tl.load(w_ptr + at, inside, 0.0).to(tl.float32)
    if LEARNED:
        step_ptr = tl.load(entry + 7).to(tl.pointer_type(tl.float32))
        step = tl.load(step_ptr + row, there, DIVISOR)
        scale = rounded(divided(step, DIVISOR), SCALE)
    elif MEAN:
        count = tl.full((ROWS,), 0, tl.int32) + K
        scale = rounded(mean_scale(tl.sum(tl.abs(w).to(tl.float64), 1), count, DIVISOR), SCALE)
    else:
        scale = rounded(largest_scale(tl.max(absolute_bits(w), 1), DIVISOR), SCALE)
    tl.store(scale_ptr + row, scale, there)
    ratio = bounded_ratio(w, scale)
    units, _ = level_of(ratio, ratio, LOWEST, HIGHEST, 0.0, False)
    units = tl.where(inside & (w == w), units, 0)
    codes = units.to(tl.int8)
    if COUNTING:
        before_ptr = tl.multiple_of(tl.load(entry + 6).to(tl.pointer_type(tl.int8)), 16)
        before = tl.load(before_ptr + at, inside, 0)
        tl.atomic_add(total_ptr, tl.sum((before != codes).to(tl.int32)).to(tl.int64))
    tl.store(codes_ptr + at, codes, inside)
    if BITS:
        fields: tl.constexpr = 8 // BITS
        packed_ptr = tl.multiple_of(tl.load(entry + 5).to(tl.pointer_type(tl.uint8)), 4)
        parts = tl.reshape(units, (ROWS, BLOCK // fields, fields))
        packed = together(parts, tl.arange(0, fields)[None, None, :], BITS, 2)
        byte = tl.arange(0, BLOCK // fields)[None, :]
        tl.store(
            packed_ptr + row.to(tl.int64)[:, None] * WIDTH + byte, packed.to(tl.uint8),
            there[:, None] & (byte < WIDTH),
        )  # fmt: skip


class Quantized(NamedTuple):
    """Of each weight [N, K].

    Attributes:
        codes: [N, K] int8.
        scales: [N, 1] float32.
        packed: [N, ceil(K bits / 8)] uint8; none where nothing was to be packed.
        changed: int64 [], how many codes of all of them differ from the last.
    """

    codes: list[Tensor]
    scales: list[Tensor]
    packed: list[Tensor]
    changed: Tensor


def fits(weight: Tensor) -> bool:
    """Whether its rows lie as the kernel reads them, and one is held in registers."""
    columns = weight.shape[1]
    aligned = weight.data_ptr() % 16 == 0 and columns % 16 == 0
    return weight.is_contiguous() and weight.numel() > 0 and aligned and columns <= _WIDEST


def quantize(
    weights: list[Tensor],
    numbers: Numbers,
    bits: int,
    before: list[Tensor] | None,
    steps: list[Tensor] | None,
    most: int,
) -> Quantized:
    """Codes and scales of weights of one width and dtype, that fit.

    Args:
        weights: [N, K] each, float32, float16 or bfloat16.
        numbers: the rule.
        bits: of a packed field, 2, 4 or 8; 0 to pack nothing.
        before: the last codes of each, to be compared; None for no comparison.
        steps: [N, 1] float32 each, contiguous, where scales are learned.
        most: weights that there may be, a power of two: programs look theirs up among so many.
    """
    device, columns = weights[0].device, weights[0].shape[1]
    width = -(-columns * bits // 8)
    block = triton.next_power_of_2(columns)
    rows = max(1, _TILE // block)
    made = Quantized(
        [torch.empty(w.shape, dtype=torch.int8, device=device) for w in weights],
        [torch.empty((len(w), 1), dtype=torch.float32, device=device) for w in weights],
        [torch.empty((len(w), width), dtype=torch.uint8, device=device) for w in weights if bits],
        torch.zeros((), dtype=torch.int64, device=device),
    )
    table: list[list[int]] = []
    programs = 0
    for at, weight in enumerate(weights):
        lists = (weights, made.codes, made.scales, made.packed, before or [], steps or [])
        table.append(
            [programs, len(weight), *(each[at].data_ptr() if each else 0 for each in lists)]
        )
        programs += triton.cdiv(len(weight), rows)
    where = copy_async(torch.tensor(table, dtype=torch.int64), device)
    _quantize[(programs,)](
        where, made.changed, len(weights), columns, width,
        W=_TRITON[weights[0].dtype], MEAN=numbers.mean, LEARNED=numbers.learned,
        DIVISOR=numbers.divisor, SCALE=_TRITON[numbers.dtype], LOWEST=numbers.lowest,
        HIGHEST=numbers.highest, BITS=bits, COUNTING=before is not None,
        MOST=most, ROWS=rows, BLOCK=block,
        num_warps=min(max(block // 1024, 4), 16),
    )  # fmt: skip
    return made
