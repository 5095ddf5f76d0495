"""Guard: every tensor that an implementation allocates lies between guard zones and starts as NaN.

A write past an end changes a guard zone; an element that is never written stays NaN (or the poison
integer); memory that the allocator hands back cannot hold the right answer from before.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tercet.kernel.register import behind

ZONE_BYTES = 64 * 1024  # more than a tile's overrun, and a multiple of every alignment
_PATTERN = 0xA5
_POISON = {True: 0xFF, False: 0x5A}  # NaN in every float format; a large odd integer

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
    """The guard zones of some tensors."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Tensor]] = []

    def place(self, name: str, like: Tensor, device: torch.device | None = None) -> Tensor:
        """A poisoned tensor laid out and aligned as `like`, between guard zones."""
        elements = 1 + sum(
            (size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)
        )
        width = like.element_size()
        size = elements * width if like.numel() else 0
        # a tensor that does not start at a multiple of 16 bytes must not do so here
        start = ZONE_BYTES + int(like.storage_offset()) * width % 16
        whole = torch.empty(
            start + size + ZONE_BYTES + -(start + size) % 16,
            dtype=torch.uint8,
            device=device or like.device,
        )
        whole.fill_(_PATTERN)
        whole[start : start + size] = _POISON[like.dtype.is_floating_point]
        self._kept.append((name, whole[:start]))
        self._kept.append((name, whole[start + size :]))
        return torch.empty(0, dtype=like.dtype, device=whole.device).set_(
            whole.untyped_storage(), start // width, like.shape, like.stride()
        )

    def broken(self) -> list[str]:
        """Which tensors were written past an end, and by how many bytes."""
        found: list[str] = []
        for at, (name, zone) in enumerate(self._kept):
            count = np.count_nonzero(zone.cpu().numpy() != _PATTERN)
            if count:
                side = "end" if at % 2 else "start"
                found.append(f"{count} bytes written past the {side} of {name}")
        return found


class GuardedAllocations(TorchDispatchMode):
    """While it is on, each new tensor is placed by `zones` and poisoned.

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
                given = run(*args, **kwargs)
            if self._promises is not None:
                self._promises += _broken_promises(func, args, kwargs, given)
            return given
        result = func(*args, **kwargs)
        if func in _EMPTY or func in _FILLED:
            placed = self._zones.place(f"a {list(result.shape)} {result.dtype} buffer", result)
            return placed.copy_(result) if func in _FILLED else placed
        return result


def _broken_promises(func: Any, args: Any, kwargs: dict[str, Any], given: Any) -> list[str]:
    """Where dtypes or shapes of results differ from those of the op's fake."""
    mode = FakeTensorMode()

    def fake(value: Any) -> Any:
        return mode.from_tensor(value.detach()) if isinstance(value, Tensor) else value

    fakes = tree_map(fake, args), tree_map(fake, kwargs)
    with mode:
        promised = func(*fakes[0], **fakes[1])
    pairs = zip(tree_leaves(given), tree_leaves(promised), strict=True)
    return [
        f"{func} returned {a.dtype} {list(a.shape)} as result {at}, its fake promises {b.dtype} "
        f"{list(b.shape)}"
        for at, (a, b) in enumerate(pairs)
        if isinstance(a, Tensor) and (a.dtype != b.dtype or a.shape != b.shape)
    ]
