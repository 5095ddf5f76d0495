"""Layouts: the same values in memory in ways that a kernel may not expect."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# of two blocks they would lie twice as far apart as of many
_BLOCKS = 2
# MKL on AVX-512 counts the bytes between two rows in 32 bits: of more its products are wrong, or
# end the process, whoever calls them
_BYTES_OF_A_STEP = 2**31


def strided(x: Tensor, index: int = 0) -> Tensor:
    """Every second element of each row of a larger tensor."""
    del index
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., ::2]
    view.copy_(x)
    return view


def transposed(x: Tensor, index: int = 0) -> Tensor:
    """First and last axis swapped in memory."""
    del index
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def padded(x: Tensor, index: int = 0) -> Tensor:
    """Rows that lie apart, those of each argument by another gap."""
    width = x.shape[-1] + 5 + index
    wide = torch.full((*x.shape[:-1], width), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., : x.shape[-1]]
    view.copy_(x)
    return view


def sliced(x: Tensor, index: int = 0) -> Tensor:
    """Matrices that lie apart, as of fewer rows than there were, each argument's by another gap."""
    if x.dim() < 3:
        return x
    shape = (*x.shape[:-2], x.shape[-2] + 1 + index, x.shape[-1])
    view = torch.full(shape, torch.nan, device=x.device).to(x.dtype)[..., : x.shape[-2], :]
    view.copy_(x)
    return view


def misaligned(x: Tensor, index: int = 0) -> Tensor:
    """Starting one element into its memory, so not at a multiple of 16 bytes."""
    del index
    memory = torch.full((x.numel() + 1,), torch.nan, device=x.device).to(x.dtype)
    view = memory[1:].view(x.shape)
    view.copy_(x)
    return view


def far_apart(x: Tensor, index: int = 0) -> Tensor:
    """Rows whose offsets, counted in elements, have more than 31 bits; nothing is between them.

    Rows that are so few that a library of products could not count their steps stay as they are.
    MemoryError where a machine does not promise that much.
    """
    rows = x.numel() // max(x.shape[-1], 1)
    if x.dim() < 2 or rows < 2:
        return x
    # of blocks of rows the last one's own offset is such, of one block that of its last row
    inner = rows // len(x)
    last = (len(x) - 1) * inner if len(x) > _BLOCKS else rows - 1
    step = -(-(2**31) // (16 * last)) * 16 + 16 * (index + 1)
    if step * x.itemsize >= _BYTES_OF_A_STEP:
        return x
    strides = [1, step]
    for size in reversed(x.shape[1:-1]):
        strides.append(strides[-1] * size)
    try:
        wide = torch.empty_strided(x.shape, strides[::-1], dtype=x.dtype)
    except RuntimeError as error:
        raise MemoryError(f"rows of {x.shape} that lie {step} elements apart") from error
    return wide.copy_(x)


def heads_first(x: Tensor, index: int = 0) -> Tensor:
    """The two axes before the last swapped in memory, as attention has heads and positions."""
    del index
    return x.transpose(-3, -2).contiguous().transpose(-3, -2) if x.dim() > 2 else x


def mixed(x: Tensor, index: int = 0) -> Tensor:
    """Every second argument in another way, so that none lies as the next one does."""
    if index % 2:
        return x
    return heads_first(x) if x.dim() > 2 else padded(x, index)


LAYOUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "strided": strided,
    "transposed": transposed,
    "heads first": heads_first,
    "padded": padded,
    "sliced": sliced,
    "misaligned": misaligned,
    "far apart": far_apart,
    "mixed": mixed,
}


def lay_out(name: str, value: Any, index: int) -> Any:
    """A tensor with elements in that layout; anything else as it is."""
    if not isinstance(value, Tensor) or not value.dim() or not value.numel():
        return value
    return LAYOUTS[name](value, index)
