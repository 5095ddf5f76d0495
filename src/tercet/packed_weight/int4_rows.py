"""Rows in 4 bits, as a key-value cache keeps them: the definition, in plain torch.

A group is 32 columns: 16 neighbours of a row's first half and the same 16 of its second.

    least = bfloat16(min of the group)      step = bfloat16((max - least) / 15), at least 0
    code  = round((y - least) / step), 0 to 15, ties to even            y is about least + code step

in IEEE float32, differences of halves, which do not overflow. A group whose step is 0, inf or NaN
has codes 0. Byte j of a row of D columns holds the code of column j in its low four bits and that
of column D/2 + j in its high four; a group's step and least are neighbours. 5 bits a number in all.

Keys have columns of outliers, so they are turned before: `turn` spreads each number over its block.
Queries are turned, too, which leaves their products with keys as they are (QuaRot, Ashkboos et al.,
arXiv:2404.00456).
"""

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.packed_weight.hadamard import hadamard_sums

DTYPE = torch.uint8
"""Of the codes, two a byte."""

SCALE_DTYPE = torch.bfloat16
"""Of steps and leasts."""

HALF_GROUP = 16
"""Columns of a group in each half of a row."""

_LIMIT = 15.0


def check_width(width: int) -> None:
    """UnsupportedError for rows that have no halves."""
    if width % 2:
        raise UnsupportedError(
            f"rows of {width} columns cannot be kept in 4 bits: two columns share a byte, so their "
            "number must be even; use int8"
        )


def groups(width: int) -> int:
    """The groups of a row of so many columns."""
    return -(-width // (2 * HALF_GROUP))


def quantize(y: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [.., D/2] and scales bfloat16 [.., 2 C] of y [.., D], contiguous.

    C is `groups` of D; scales are step and least of each group in turn.
    """
    check_width(y.shape[-1])
    half = y.shape[-1] // 2
    parts = y.float().reshape(*y.shape[:-1], 2, half)
    lowest, highest = _ends(parts)
    least = lowest.to(SCALE_DTYPE).float()
    # on a GPU torch divides by a number as a product with its reciprocal, which is not exact
    step = (highest / 2 - least / 2) / torch.full_like(least, _LIMIT / 2)
    step = torch.where(step < 0, 0.0, step).to(SCALE_DTYPE).float()
    usable = (step > 0) & step.isfinite() & least.isfinite()
    divisor, base, some = (
        of_columns(part, half).unsqueeze(-2)
        for part in (torch.where(usable, step, 1.0), least, usable)
    )
    ratio = torch.where(some, (parts / 2 - base / 2) / (divisor / 2), 0.0)
    codes = ratio.round().clamp(0.0, _LIMIT).to(DTYPE)
    scales = torch.stack((step, least), -1).flatten(-2).to(SCALE_DTYPE)
    return codes[..., 0, :] | codes[..., 1, :] << 4, scales


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers that codes [.., D/2] with scales [.., 2 C] stand for, float32 [.., D]."""
    half = codes.shape[-1]
    step, least = (of_columns(part, half) for part in split_scales(scales))
    return torch.cat(((codes & 15) * step + least, (codes >> 4) * step + least), -1)


def split_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Steps and leasts [.., C], float32."""
    pairs = scales.float().reshape(*scales.shape[:-1], scales.shape[-1] // 2, 2)
    return pairs[..., 0], pairs[..., 1]


def block(width: int) -> int:
    """The columns of a half that `turn` mixes: the largest power of two that divides D / 2."""
    half = width // 2
    return max(half & -half, 1)


def turn(y: Tensor) -> Tensor:
    """y [.., D] times the normalized Hadamard matrix of blocks of both halves; its own inverse.

    A block is `block` neighbours of the first half with the same of the second. float32, or
    float64 as y is.
    """
    check_width(y.shape[-1])
    work = y if y.dtype == torch.float64 else y.float()
    first, second = work.chunk(2, -1)
    work = torch.cat((first + second, first - second), -1)
    size = block(y.shape[-1])
    return hadamard_sums(work, size) * (2 * size) ** -0.5


def of_columns(of_groups: Tensor, half: int) -> Tensor:
    """What groups [.., C] have, for each column of a half [.., half]."""
    return of_groups.repeat_interleave(HALF_GROUP, -1)[..., :half]


def _ends(parts: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest [.., C] of each group of halves [.., 2, D/2]."""
    missing = -parts.shape[-1] % HALF_GROUP
    found = list[Tensor]()
    for fill in (float("inf"), float("-inf")):
        padded = torch.nn.functional.pad(parts, (0, missing), value=fill)
        split = padded.reshape(*padded.shape[:-1], padded.shape[-1] // HALF_GROUP, HALF_GROUP)
        found.append(split.amin((-3, -1)) if fill > 0 else split.amax((-3, -1)))
    return found[0], found[1]
