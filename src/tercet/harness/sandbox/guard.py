"""Guard: every tensor of a judged call lies between guard zones and starts as NaN.

A write past an end changes a guard zone; an element that is never written stays NaN (or the poison
integer); memory that the allocator hands back cannot hold the right answer from before. Tensors are
described as plain data, so that another process can look at the same bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.harness.sandbox.arena import Memory, OwnMemory
from tercet.harness.sandbox.promises import broken_promises
from tercet.kernel.register import behind

ZONE_BYTES = 64 * 1024  # more than a tile's overrun, and a multiple of every alignment
_SPARSE_BYTES = 2**31 - 1
_PATTERN = 0xA5
_POISON = {True: 0xFF, False: 0x5A}  # NaN in every float format; a large odd integer

# name, offset of the block, its size, where in it the tensor's bytes start, and how many they are
Placement = dict[str, Any]

_aten = torch.ops.aten
_EMPTY = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_FILLED = {
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten.ones.default,
    _aten.ones_like.default,
    _aten.full.default,
    _aten.full_like.default,
    _aten.new_full.default,
    _aten.new_ones.default,
}


class Zones:
    """Places tensors between guard zones in a memory, and remembers where.

    Attributes:
        placed: every placement since the last `clear`, in order.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = OwnMemory("cpu") if memory is None else memory
        self.placed: list[Placement] = []

    def place(self, name: str, like: Tensor) -> Tensor:
        """A poisoned tensor laid out and aligned as `like`, between guard zones."""
        return self.described(name, like)[0]

    def described(self, name: str, like: Tensor) -> tuple[Tensor, Placement]:
        """The same, with its placement."""
        elements = 1 + sum(
            (size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)
        )
        width = like.element_size()
        size = elements * width if like.numel() else 0
        # a tensor that does not start at a multiple of 16 bytes must not do so here
        start = ZONE_BYTES + int(like.storage_offset()) * width % 16
        whole = start + size + ZONE_BYTES + -(start + size) % 16
        block = self.memory.take(whole)
        for zone in (block.octets[:start], block.octets[start + size :]):
            _fill(zone, _PATTERN)
        if not is_sparse(size):
            _fill(block.octets[start : start + size], _POISON[like.dtype.is_floating_point])
        placement: Placement = {
            "name": name, "offset": block.offset, "whole": whole, "start": start, "size": size,
        }  # fmt: skip
        self.placed.append(placement)
        placed = torch.empty(0, dtype=like.dtype, device=block.octets.device).set_(
            block.octets.untyped_storage(),
            (int(block.octets.storage_offset()) + start) // width,
            like.shape,
            like.stride(),
        )
        return placed, placement

    def clear(self) -> None:
        """Frees the memory of everything that was placed."""
        self.placed.clear()
        self.memory.reset()

    def broken(self) -> list[str]:
        """As `broken_zones`, of everything that was placed."""
        return broken_zones(self.memory, self.placed)


def is_sparse(size: int) -> bool:
    """Whether a tensor that reaches over so many bytes is mostly gaps, which nothing touches."""
    return size > _SPARSE_BYTES


def broken_zones(memory: Memory, placed: Iterable[Placement]) -> list[str]:
    """Which tensors were written past an end, and by how many bytes."""
    found: list[str] = []
    for one in placed:
        octets = memory.at(one["offset"], one["whole"])
        last = one["start"] + one["size"]
        for side, zone in (("start", octets[: one["start"]]), ("end", octets[last:])):
            count = _count_written(zone)
            if count:
                found.append(f"{count} bytes written past the {side} of {one['name']}")
    return found


def _fill(octets: Tensor, value: int) -> None:
    # numpy's, because torch wakes its threads for this, which a busy machine makes wait
    if octets.device.type == "cpu":
        octets.numpy().fill(value)
    else:
        octets.fill_(value)


def _count_written(zone: Tensor) -> int:
    if zone.device.type == "cpu":
        return int(np.count_nonzero(zone.numpy() != _PATTERN))
    return int((zone != _PATTERN).sum())


def describe(tensor: Tensor, placement: Mapping[str, Any]) -> dict[str, Any]:
    """A placed tensor as plain data, for `view`."""
    return {
        "offset": placement["offset"],
        "whole": placement["whole"],
        "start": placement["start"],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": tensor.dtype,
    }


def view(memory: Memory, described: Mapping[str, Any]) -> Tensor:
    """The tensor of a description, in this process. ValueError where it is none."""
    octets = memory.at(described["offset"], described["whole"])
    dtype, shape, stride = (described[key] for key in ("dtype", "shape", "stride"))
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    width = torch.empty(0, dtype=dtype).element_size()
    if min((*shape, 1)) > 0 and not 0 <= described["start"] + (reach + 1) * width <= len(octets):
        raise ValueError(f"a tensor of {shape} with strides {stride} is larger than its memory")
    return torch.empty(0, dtype=dtype, device=octets.device).set_(
        octets.untyped_storage(),
        (octets.storage_offset() + described["start"]) // width,
        shape,
        stride,
    )


class GuardedAllocations(TorchDispatchMode):
    """A mode in which each new tensor is placed by `zones` and poisoned.

    `promises` collects what a registered op returns otherwise than its fake says; that of a
    gradient nobody else sees, because autograd converts it silently.
    """

    def __init__(self, zones: Zones, promises: list[str] | None = None) -> None:
        super().__init__()
        self._zones, self._promises = zones, promises

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        run = behind(func)
        if run is not None:
            with self:
                results = run(*args, **kwargs)
            if self._promises is not None:
                self._promises += broken_promises(func, args, kwargs, results)
            return results
        result = func(*args, **kwargs)
        if func not in _EMPTY and func not in _FILLED:
            return result
        if result.device.type != self._zones.memory.device.type:
            return result if func in _FILLED else _poison(result)
        placed = self._zones.place(f"a {list(result.shape)} {result.dtype} buffer", result)
        return placed.copy_(result) if func in _FILLED else placed


class FailingOperation(TorchDispatchMode):
    """A mode in which one of torch's operations fails, as where memory ends; None: none does.

    Attributes:
        count: how many there were.
    """

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.count, self._at = 0, at

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = behind(func)
        if run is not None:
            with self:
                return run(*args, **(kwargs or {}))
        self.count += 1
        if self.count - 1 == self._at:
            raise torch.OutOfMemoryError("no memory is left: the check lets this operation fail")
        return func(*args, **(kwargs or {}))


def _poison(tensor: Tensor) -> Tensor:
    """A new tensor that lies elsewhere than the judge's memory: without zones."""
    octets = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    octets.set_(tensor.untyped_storage()).fill_(_POISON[tensor.dtype.is_floating_point])
    return tensor
