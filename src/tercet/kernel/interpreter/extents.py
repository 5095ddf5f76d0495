"""Extents: where the tensors of a launch lie. An access anywhere else is an error.

As compute-sanitizer's memcheck says it on a GPU, but by each tensor's own first and last element: a
mask that is missing or one too long shows, though what it reads is nowhere used and memory goes on.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch

from tercet.errors import TercetError


class OutOfBoundsError(TercetError, IndexError):
    """A kernel reads or writes beside its tensors."""


class Extents:
    """From the first to the last element of each tensor among a launch's arguments.

    Args:
        arguments: of the launch, by name; what is no tensor lies nowhere.

    Attributes:
        anywhere: whether nothing is refused, for the launch makes addresses of numbers: those of a
            table of tensors, say.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        found = list[tuple[int, int, str]]()
        for name, value in arguments.items():
            for one in value if isinstance(value, tuple) else (value,):
                tensor: Any = getattr(one, "base", one)
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    found.append((*_extent(tensor), name))
        self._extents = list[tuple[int, int, str]]()
        for first, last, name in sorted(found):
            if self._extents and first < self._extents[-1][1]:
                before = self._extents[-1]
                names = before[2] if name in before[2].split(" or ") else f"{before[2]} or {name}"
                self._extents[-1] = before[0], max(before[1], last), names
            else:
                self._extents.append((first, last, name))
        self._firsts = [first for first, _, _ in self._extents]
        self.anywhere = False

    def check(self, does: str, at: Any, width: int) -> tuple[int, int]:
        """OutOfBoundsError unless every address lies in a tensor with all its bytes.

        Args:
            does: "reads" or "writes".
            at: addresses, one at least.
            width: bytes of an element.

        Returns:
            The first byte's address, and what is behind the last one's.
        """
        first, last = int(at.min()), int(at.max()) + width
        here = self._before(first)
        if not self.anywhere and (here is None or last > here[1]):
            # in several tensors, or beside one
            for address in {first, last - width, *at.reshape(-1).tolist()}:
                found = self._before(address)
                if found is None or address + width > found[1]:
                    raise OutOfBoundsError(f"{does} {self._describe(address, width)}")
        return first, last

    def _before(self, address: int) -> tuple[int, int, str] | None:
        at = bisect_right(self._firsts, address) - 1
        return self._extents[at] if at >= 0 else None

    def _describe(self, address: int, width: int) -> str:
        distances = [
            (address - last, f"behind the end of {name}") if address >= first
            else (first - address - width, f"before the start of {name}")
            for first, last, name in self._extents
        ]  # fmt: skip
        if not distances:
            return f"{width} bytes, and no tensor of the launch has an element"
        distance, where = min(distances)
        return f"{width} bytes, {max(distance, 0)} bytes {where}"


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    first = tensor.data_ptr()
    return first, first + (reach + 1) * tensor.element_size()
