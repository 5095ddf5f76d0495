"""Rows in 4 bits in float64: what references of ops that keep them so have in common.

`int4_rows` is the definition in float32. Here rows are as exact as float64 has them; what they are
off by may move a step or a least to its bfloat16 neighbour, and a code to the next.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tercet.packed_weight.int4_rows import HALF_GROUP, groups, of_columns

_LIMIT = 15.0
# of a difference and a quotient of float32 numbers
_QUOTIENT = 2.0**-22
# subnormal float32 numbers are a fixed distance apart
_SUBNORMAL = 2.0**-149


class Int4Rows(NamedTuple):
    """Rows [.., D] as codes, or what these may be off by.

    Attributes:
        codes: bytes [.., D/2].
        scales: step and least of each group in turn [.., 2 C].
    """

    codes: Tensor
    scales: Tensor


def round_rows(y: Tensor) -> Int4Rows:
    """The codes and scales of rows y."""
    lowest, highest = _ends(y)
    least, step = _nearest(lowest), _step(lowest, highest, 0.0)
    return _join(_codes(y, least, step), least, step)


def room_of_rows(y: Tensor, error: Tensor) -> Int4Rows:
    """How far from `round_rows` the result may lie where y [.., D] is off by `error`."""
    expected, (lowest, highest) = round_rows(y), _ends(y)
    least, step = expected.scales[..., 1::2], expected.scales[..., ::2]
    most = _ends(error + _SUBNORMAL)[1]
    leasts = _nearest(lowest - most), _nearest(lowest + most)
    steps = (
        _step(lowest + most, highest - most, -_QUOTIENT),
        _step(lowest - most, highest + most, _QUOTIENT),
    )
    off = error + _SUBNORMAL + (y.abs() + of_rows(least.abs(), y.shape[-1])) * _QUOTIENT
    middle = _codes(y, least, step)
    furthest = torch.zeros_like(middle)
    for base in leasts:
        for width in steps:
            for moved in (y - off, y + off):
                furthest = torch.maximum(furthest, (_codes(moved, base, width) - middle).abs())
    return _join(
        furthest,
        _furthest(least, leasts),
        _furthest(step, steps),
    )


def of_rows(of_groups: Tensor, width: int) -> Tensor:
    """What groups [.., C] have, for each column of rows [.., D]."""
    half = of_columns(of_groups, width // 2)
    return torch.cat((half, half), -1)


def _furthest(middle: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
    return torch.maximum((ends[0] - middle).abs(), (ends[1] - middle).abs())


def _nearest(x: Tensor) -> Tensor:
    """The nearest bfloat16 number."""
    return x.float().bfloat16().double()


def _step(lowest: Tensor, highest: Tensor, relative: float) -> Tensor:
    step = (highest - _nearest(lowest)) / _LIMIT * (1.0 + relative)
    return _nearest(torch.where(step < 0, 0.0, step))


def _codes(y: Tensor, least: Tensor, step: Tensor) -> Tensor:
    """[.., D], each 0 to 15."""
    usable = (step > 0) & step.isfinite() & least.isfinite()
    width = y.shape[-1]
    ratio = (y - of_rows(least, width)) / of_rows(torch.where(usable, step, 1.0), width)
    return torch.where(of_rows(usable, width), ratio, 0.0).round().clamp(0.0, _LIMIT)


def _join(codes: Tensor, least: Tensor, step: Tensor) -> Int4Rows:
    low, high = codes.chunk(2, -1)
    return Int4Rows(codes=low + 16 * high, scales=torch.stack((step, least), -1).flatten(-2))


def _ends(y: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest [.., C] of each group; NaN where one is."""
    parts, count = y.reshape(*y.shape[:-1], 2, y.shape[-1] // 2), groups(y.shape[-1])
    each = [parts[..., g * HALF_GROUP : (g + 1) * HALF_GROUP].flatten(-2) for g in range(count)]
    if not each:
        return y[..., :0], y[..., :0]
    return torch.stack([g.amin(-1) for g in each], -1), torch.stack([g.amax(-1) for g in each], -1)
