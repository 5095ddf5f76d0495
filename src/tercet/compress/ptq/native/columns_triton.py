"""Columns that follow one another, on a GPU: a program takes a few rows through a block of columns.

What is still to be rounded of those rows stays in the registers of one warp. A column waits for the
one before it, and for what is read of it: that is asked for two columns ahead. A column takes 0.4
us for 2,340 rows of an H200 (0.8 with 32 rows a program and nothing asked for ahead).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 8
_AHEAD = tl.constexpr(3)
# adding 1.5 * 2^23 rounds to an integer, ties to even
_TO_INTEGER = tl.constexpr(12582912.0)


@triton.jit
def nearest(steps, LOWEST: tl.constexpr, HIGHEST: tl.constexpr):
    """The integer level nearest to steps; NaN becomes LOWEST."""
    inside = tl.minimum(tl.maximum(steps, LOWEST), HIGHEST)
    return (inside + _TO_INTEGER) - _TO_INTEGER


@triton.jit
def _spread(
    rest,
    levels,
    errors,
    factor,
    stride,
    pivot,
    scale,
    inverse,
    zero,
    rows,
    columns,
    HAS_ZERO: tl.constexpr,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    here = row < rows
    inside = (column < columns)[:, None] & here[None, :]
    left = tl.load(rest + column[:, None] * rows + row[None, :], inside, 0.0)
    for i in tl.range(columns, num_stages=_AHEAD):
        at = i * rows + row
        value = tl.sum(tl.where((column == i)[:, None], left, 0.0), 0)
        steps = value * tl.load(inverse + at, here, 0.0)
        offset = tl.zeros([ROWS], tl.float32)
        if HAS_ZERO:
            offset = tl.load(zero + at, here, 0.0)
        level = nearest(steps + offset, LOWEST, HIGHEST)
        rounded = (level - offset) * tl.load(scale + at, here, 0.0)
        error = (value - rounded) * tl.load(pivot + i)
        tl.store(levels + at, level, here)
        tl.store(errors + at, error, here)
        after = (column > i) & (column < columns)
        left -= tl.load(factor + i * stride + column, after, 0.0)[:, None] * error[None, :]


@triton.jit
def _sweep(
    quantized,
    slope,
    levels,
    change,
    gains,
    gram,
    stride,
    pivot,
    scale,
    inverse,
    zero,
    rows,
    columns,
    HAS_ZERO: tl.constexpr,
    LOWEST: tl.constexpr,
    HIGHEST: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    here = row < rows
    inside = (column < columns)[:, None] & here[None, :]
    left = tl.load(slope + column[:, None] * rows + row[None, :], inside, 0.0)
    gain = tl.zeros([ROWS], tl.float64)
    for i in tl.range(columns, num_stages=_AHEAD):
        at = i * rows + row
        value = tl.sum(tl.where((column == i)[:, None], left, 0.0), 0)
        before = tl.load(quantized + at, here, 0.0)
        steps = (before + value * tl.load(pivot + i)) * tl.load(inverse + at, here, 0.0)
        offset = tl.zeros([ROWS], tl.float32)
        if HAS_ZERO:
            offset = tl.load(zero + at, here, 0.0)
        level = nearest(steps + offset, LOWEST, HIGHEST)
        moved = (level - offset) * tl.load(scale + at, here, 0.0) - before
        tl.store(levels + at, level, here)
        tl.store(change + at, moved, here)
        moved = tl.where(here, moved, 0.0)
        gain += (moved * (2.0 * value - moved * tl.load(gram + i * stride + i))).to(tl.float64)
        after = (column > i) & (column < columns)
        left -= tl.load(gram + i * stride + column, after, 0.0)[:, None] * moved[None, :]
    tl.store(gains + row, gain, here)


def spread(
    work: Tensor,
    factor: Tensor,
    pivot: Tensor,
    grid: tuple[Tensor, Tensor, Tensor | None],
    bounds: tuple[float, float],
    levels: Tensor,
    errors: Tensor,
) -> None:
    """`spread_block` of columns.py on contiguous float32 tensors.

    Args:
        work: what is to be rounded [B, N].
        factor: U [B, B], rows of any stride.
        pivot: [B].
        grid: scale [B, N], its inverse, and zero points or None.
        bounds: the lowest and the highest level.
        levels, errors: the results [B, N].
    """
    columns, rows = work.shape
    _spread[(triton.cdiv(rows, _ROWS),)](
        *(work, levels, errors, factor, factor.stride(0), pivot, *_pointers(grid), rows, columns),
        **_constants(columns, grid, bounds),
    )


def sweep(
    quantized: Tensor,
    slope: Tensor,
    gram: Tensor,
    pivot: Tensor,
    grid: tuple[Tensor, Tensor, Tensor | None],
    bounds: tuple[float, float],
    levels: Tensor,
    change: Tensor,
) -> Tensor:
    """`sweep_block` of columns.py on contiguous float32 tensors; the gain is a float64 scalar.

    Args:
        quantized, slope: [B, N].
        gram: H [B, B], rows of any stride.
        pivot: [B].
        grid: scale [B, N], its inverse, and zero points or None.
        bounds: the lowest and the highest level.
        levels, change: the results [B, N].
    """
    columns, rows = quantized.shape
    gains = torch.empty(rows, dtype=torch.float64, device=quantized.device)
    _sweep[(triton.cdiv(rows, _ROWS),)](
        *(quantized, slope, levels, change, gains, gram, gram.stride(0), pivot),
        *(*_pointers(grid), rows, columns),
        **_constants(columns, grid, bounds),
    )
    return gains.sum()


def _pointers(grid: tuple[Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
    scale, inverse, zero = grid
    return scale, inverse, scale if zero is None else zero


def _constants(
    columns: int, grid: tuple[Tensor, Tensor, Tensor | None], bounds: tuple[float, float]
) -> dict[str, object]:
    return {
        "HAS_ZERO": grid[2] is not None,
        "LOWEST": bounds[0],
        "HIGHEST": bounds[1],
        "BLOCK": triton.next_power_of_2(columns),
        "ROWS": _ROWS,
        "num_warps": 1,
    }
