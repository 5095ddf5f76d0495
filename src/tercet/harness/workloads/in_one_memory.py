"""Two inputs that lie in one memory, as callers give them: one tensor twice, or parts of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class InOneMemory:
    """Two tensors, views of a third."""

    whole: Tensor
    one: Tensor
    other: Tensor


Way = Callable[[Tensor, Tensor], InOneMemory | None]
"""(one, other), alike -> both in one memory; None where they are not such as can lie so."""


def put_twice(one: Tensor, other: Tensor) -> InOneMemory | None:
    """One tensor is given as both."""
    del other
    whole = one.clone(memory_format=torch.contiguous_format)
    return InOneMemory(whole=whole, one=whole, other=whole)


def put_at_one_address(one: Tensor, other: Tensor) -> InOneMemory | None:
    """Both begin at one address, and their rows lie elsewhere."""
    if one.dim() < 2 or one.shape[0] < 2 or not one.numel():
        return None
    rows = one.numel() // one.shape[-1]
    whole = torch.cat((one.reshape(rows, -1), other.reshape(rows, -1)), 1)
    wide = whole.view(*one.shape[:-1], 2 * one.shape[-1])[..., : one.shape[-1]]
    return InOneMemory(whole=whole, one=wide, other=whole.view(-1)[: one.numel()].view(one.shape))


def put_side_by_side(one: Tensor, other: Tensor) -> InOneMemory | None:
    """Both lie in the same rows, of which more follow."""
    if one.dim() < 2:
        return None
    *leading, rows, columns = one.shape
    whole = torch.full((*leading, rows + 1, 2 * columns), torch.nan, dtype=one.dtype)
    first, second = whole[..., :rows, :columns], whole[..., :rows, columns:]
    first.copy_(one)
    second.copy_(other)
    return InOneMemory(whole=whole, one=first, other=second)


def put_other_first(one: Tensor, other: Tensor) -> InOneMemory | None:
    """Side by side, too: of two halves of a tensor, a kernel may expect one to be the first."""
    found = put_side_by_side(other, one)
    return found and InOneMemory(whole=found.whole, one=found.other, other=found.one)


SIDE_BY_SIDE: tuple[Way, ...] = (put_side_by_side, put_other_first)
WAYS: Mapping[str, Way] = {
    "is the very tensor of": put_twice,
    "begins where its rows lie elsewhere, at the address of": put_at_one_address,
    "lies in the same rows, of which more follow, as": put_side_by_side,
    "lies first in the same rows, of which more follow, before": put_other_first,
}
"""What the other is to the one, in words."""


def part_of(placed: Mapping[str, Any], part: Tensor) -> dict[str, Any]:
    """The place of a view, where the contiguous tensor that it is of was placed."""
    begin = placed["start"] + part.storage_offset() * part.element_size()
    shape, stride = list(part.shape), list(part.stride())
    return {**placed, "start": begin, "shape": shape, "stride": stride}
