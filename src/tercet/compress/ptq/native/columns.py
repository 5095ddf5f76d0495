"""Columns that follow one another, a block at a time: rounding of GPTQ, and coordinate descent.

All matrices lie transposed, [columns, N], so that a column of the weight is contiguous. In C++ or
Triton where they apply; torch does the same and is the definition.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native.library import address, best_isa, loops
from tercet.formats import Element

BLOCK = 128
"""Columns of a block; no more than kMostColumns of loops.cpp."""
# a product of a block's columns alone is bound by a GPU's memory, a processor has them near
_TOLD_AT_ONCE = {"cpu": BLOCK, "cuda": 8 * BLOCK}

_P, _I64, _F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Block(ctypes.Structure):
    """Mirrors `struct Block` of loops.cpp, field by field."""

    _fields_ = (
        ("rows", _I64),
        ("columns", _I64),
        ("stride", _I64),
        ("lowest", _F32),
        ("highest", _F32),
        ("matrix", _P),
        ("pivot", _P),
        ("scale", _P),
        ("inverse", _P),
        ("zero", _P),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """The grid of a weight W [N, K], or of some of its columns, column by column.

    Attributes:
        element: whose levels they are.
        scale: [K, N], of W's dtype or float32.
        inverse: 1 / scale, 0 where it is 0.
        zero: [K, N], or None for a symmetric scheme.
    """

    element: Element
    scale: Tensor
    inverse: Tensor
    zero: Tensor | None

    @classmethod
    def of(cls, grid: Grid, order: Tensor | None = None) -> "Columns":
        """The grid's columns in the order of processing [K]; None is their own."""

        def lay(values: Tensor) -> Tensor:
            return (values.T if order is None else values.T[order]).contiguous()

        scale = lay(grid.scale)
        return cls(
            element=grid.scheme.element,
            scale=scale,
            inverse=torch.where(scale > 0, 1.0 / scale, 0.0),
            zero=None if grid.zero is None else lay(grid.zero),
        )

    def slice(self, part: slice) -> "Columns":
        """These of the columns."""
        return Columns(
            element=self.element,
            scale=self.scale[part],
            inverse=self.inverse[part],
            zero=None if self.zero is None else self.zero[part],
        )

    @property
    def grid(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """scale, inverse and zero."""
        return self.scale, self.inverse, self.zero

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest level."""
        return self.element.lowest, self.element.highest

    def values(self, levels: Tensor) -> Tensor:
        """(levels - zero) * scale [K, N]."""
        return (levels if self.zero is None else levels - self.zero) * self.scale

    def nearest(self, i: int, value: Tensor) -> Tensor:
        """The levels [N] nearest to values [N] of column i."""
        steps = value * self.inverse[i]
        return round_levels(steps if self.zero is None else steps + self.zero[i], self.element)

    def value(self, i: int, level: Tensor) -> Tensor:
        """(level - zero) * scale of column i, [N]."""
        return (level if self.zero is None else level - self.zero[i]) * self.scale[i]


def round_levels(values: Tensor, element: Element) -> Tensor:
    """The nearest level of each value."""
    if element.integer:
        return values.round().clamp_(element.lowest, element.highest)
    return element.decode(element.encode(values))


def in_blocks(rest: Tensor, matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of columns in turn, each with what is to be filled [B, N]: how its columns moved.

    The columns behind are told of it before their own turn.

    Args:
        rest: [K, N]; column j loses matrix[j, i] times what column i < j moved.
        matrix: [K, K].
    """
    for first in range(0, len(rest), _TOLD_AT_ONCE[rest.device.type]):
        last = min(first + _TOLD_AT_ONCE[rest.device.type], len(rest))
        moved = torch.empty_like(rest[first:last])
        for start in range(first, last, BLOCK):
            end = min(start + BLOCK, last)
            mine = moved[start - first : end - first]
            yield slice(start, end), mine
            rest[end:last].addmm_(matrix[end:last, start:end], mine, alpha=-1)
        rest[last:].addmm_(matrix[last:, first:last], moved, alpha=-1)


def spread_block(
    rest: Tensor, columns: Columns, factor: Tensor, pivot: Tensor, levels: Tensor, errors: Tensor
) -> None:
    """Rounds the columns in turn, spreading each one's error over those after it.

    Args:
        rest: what is to be rounded [B, N]; left as it is.
        columns: their grid.
        factor: U [B, B], upper triangular: column j loses U[i, j] times the error of column i < j.
        pivot: 1 / diagonal of U, [B].
        levels: becomes the levels [B, N].
        errors: becomes (rest - rounded) * pivot, [B, N].
    """
    applies = _apply(columns, factor, rest, pivot, levels, errors)
    if applies and rest.device.type == "cuda":
        _triton().spread(rest, factor, pivot, columns.grid, columns.bounds, levels, errors)
        return
    library = loops() if applies else None
    if library is not None:
        # as the loop reads it: of each column, the factors of those before it
        matrix = factor.T.contiguous()
        block = _block(columns, matrix, pivot)
        library.tercet_spread(
            ctypes.byref(block),
            *(rest.data_ptr(), levels.data_ptr(), errors.data_ptr()),
            *(best_isa(), torch.get_num_threads()),
        )
        return
    left = rest.clone()
    for i in range(len(left)):
        levels[i] = columns.nearest(i, left[i])
        errors[i] = (left[i] - columns.value(i, levels[i])) * pivot[i]
        left[i + 1 :].addr_(factor[i, i + 1 :], errors[i], alpha=-1)


def sweep_block(
    quantized: Tensor,
    slope: Tensor,
    columns: Columns,
    gram: Tensor,
    pivot: Tensor,
    levels: Tensor,
    change: Tensor,
) -> Tensor:
    """Moves each column in turn to its best level with all others held: how far the loss falls.

    On a GPU nothing is waited for: the fall of the loss stays there.

    Args:
        quantized: Q [B, N] before.
        slope: ((W - Q) H)^T [B, N] before; left as it is.
        columns: their grid.
        gram: H [B, B] of these columns.
        pivot: 1 / diagonal of H, [B].
        levels: becomes the levels [B, N].
        change: becomes the change of Q [B, N].
    """
    applies = _apply(columns, gram, quantized, slope, pivot, levels, change)
    if applies and quantized.device.type == "cuda":
        return _triton().sweep(
            *(quantized, slope, gram, pivot, columns.grid, columns.bounds, levels, change)
        )
    library = loops() if applies else None
    if library is not None:
        matrix = gram.contiguous()
        block = _block(columns, matrix, pivot)
        gains = torch.empty(-(-quantized.shape[1] // 64), dtype=torch.float64)
        library.tercet_sweep(
            ctypes.byref(block),
            *(quantized.data_ptr(), slope.data_ptr(), levels.data_ptr(), change.data_ptr()),
            *(gains.data_ptr(), best_isa(), torch.get_num_threads()),
        )
        return gains.sum()
    left, gain = slope.clone(), slope.new_zeros((), dtype=torch.float64)
    for i in range(len(left)):
        levels[i] = columns.nearest(i, quantized[i] + left[i] * pivot[i])
        change[i] = columns.value(i, levels[i]) - quantized[i]
        gain += (change[i] * (2 * left[i] - change[i] * gram[i, i])).sum()
        left[i + 1 :].addr_(gram[i, i + 1 :], change[i], alpha=-1)
    return gain


def _triton() -> Any:
    # imported here: a CPU needs none of it
    from tercet.compress.ptq.native import columns_triton

    return columns_triton


def _apply(columns: Columns, matrix: Tensor, *tensors: Tensor) -> bool:
    """Whether the loops in C++ or Triton take a matrix [B, B] and these, the first [B, N]."""
    return (
        columns.element.integer
        and len(matrix) <= BLOCK
        and matrix.dtype == torch.float32
        and matrix.stride(1) == 1
        and all(
            t.dtype == torch.float32 and t.is_contiguous()
            for t in (*tensors, columns.scale, columns.inverse)
        )
        and (columns.zero is None or columns.zero.is_contiguous())
        and tensors[0].numel() > 0
    )


def _block(columns: Columns, matrix: Tensor, pivot: Tensor) -> _Block:
    return _Block(
        rows=columns.scale.shape[1],
        columns=columns.scale.shape[0],
        stride=matrix.shape[1],
        lowest=columns.element.lowest,
        highest=columns.element.highest,
        matrix=matrix.data_ptr(),
        pivot=pivot.data_ptr(),
        scale=columns.scale.data_ptr(),
        inverse=columns.inverse.data_ptr(),
        zero=address(columns.zero),
    )
