"""Many: codes of many weights in one launch, into memory that is there.

A step of training makes the codes of all weights anew: 112 launches for Llama-3.2-1B, each of 11 us
on an H200, for which a host takes 120 to 240 us. One kernel finds its weight in a table.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.row_quantizer import absolute_bits
from tercet.ops.fake_quantize.rule import rule_of
from tercet.ops.fake_quantize.triton import (
    DTYPES,
    blocks_of,
    largest,
    mean,
    options_of,
    rounded,
    write,
)


@triton.jit
def _held_many(
    w_ptr, codes_ptr, scale_ptr, table_ptr, of_ptr, K,
    MEAN: tl.constexpr, DIVISOR: tl.constexpr, SCALE: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, ALIGNED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes and scales of rows of up to BLOCK columns, of weight of_ptr[program].

    table [weights, 5]: the first program, rows, and how many elements from the first weight's
    elements, codes and scales its own begin.
    """
    program = tl.program_id(0)
    entry = table_ptr + tl.load(of_ptr + program) * 5
    row = (program - tl.load(entry)) * ROWS + tl.arange(0, ROWS)
    there = row < tl.load(entry + 1)
    w_at = tl.multiple_of(tl.load(entry + 2), ALIGNED)
    codes_at = tl.multiple_of(tl.load(entry + 3), ALIGNED)
    columns = (row * 0)[:, None] + tl.arange(0, BLOCK)[None, :]
    inside = there[:, None] & (columns < K)
    w = tl.load(w_ptr + w_at + row[:, None] * K + columns, inside, 0.0).to(tl.float32)
    if MEAN:
        total = tl.sum(tl.abs(w).to(tl.float64), 1)
        scale = rounded(mean(total, row * 0 + K, DIVISOR), SCALE)
    else:
        scale = rounded(largest(tl.max(absolute_bits(w), 1), DIVISOR), SCALE)
    tl.store(scale_ptr + tl.load(entry + 4) + row, scale, there)
    write(
        w, scale, row, columns, inside, w_ptr, w_ptr, codes_ptr + codes_at, K,
        LOWEST, HIGHEST, 0.0, False, False,
    )  # fmt: skip


def fit(weight: Tensor, codes: Tensor, scale: Tensor, scheme: str, method: str) -> bool:
    """Whether the kernel takes a weight: rows held whole, each with a scale that is found."""
    rule, (n, k) = rule_of(scheme, method), weight.shape
    return (
        not rule.learned
        and rule.scale_shape(n, k) == (n, 1)
        and 0 < k <= options_of("forward", n, k, k, True)["HELD"]
        and n > 0
        and all(tensor.is_contiguous() for tensor in (weight, codes, scale))
        and codes.shape == weight.shape
        and scale.shape == (n, 1)
    )


def fake_quantize_many(
    weights: Sequence[Tensor],
    codes: Sequence[Tensor],
    scales: Sequence[Tensor],
    scheme: str,
    method: str,
) -> None:
    """Writes codes [N, K] and scales [N, 1] of weights that `fit`, of one K, dtype and device."""
    rule, k = rule_of(scheme, method), weights[0].shape[1]
    longest = max(len(weight) for weight in weights)
    _, block = blocks_of(longest, k, options_of("forward", longest, k, k, True), True)
    rows = block["ROWS"]
    size, aligned = weights[0].element_size(), 16
    base = weights[0].data_ptr(), codes[0].data_ptr(), scales[0].data_ptr()
    entries = list[int]()
    first = 0
    for weight, code, scale in zip(weights, codes, scales, strict=True):
        places = (
            (weight.data_ptr() - base[0]) // size,
            code.data_ptr() - base[1],
            (scale.data_ptr() - base[2]) // 4,
        )
        if places[0] % aligned or places[1] % aligned:
            aligned = 1
        entries += (first, len(weight), *places)
        first += -(-len(weight) // rows)
    counts = tuple(-(-len(weight) // rows) for weight in weights)
    device = weights[0].device
    _held_many[(first,)](
        weights[0], codes[0], scales[0], _table(tuple(entries), device), _of(counts, device), k,
        MEAN=rule.mean, DIVISOR=rule.divisor, SCALE=DTYPES[rule.dtype],
        LOWEST=rule.lowest, HIGHEST=rule.highest, ALIGNED=aligned, **block,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _table(entries: tuple[int, ...], device: torch.device) -> Tensor:
    """Weights keep their places from step to step."""
    return torch.tensor(entries, dtype=torch.int64, device=device)


@lru_cache(maxsize=32)
def _of(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """The weight of each program."""
    each = torch.arange(len(counts), dtype=torch.int32)
    return each.repeat_interleave(torch.tensor(counts)).to(device)
