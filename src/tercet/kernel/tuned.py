"""Tuned: the best configuration of a kernel, per device and shape, as the tuner wrote it.

`ops/OP/tuned/DEVICE.json` holds a list of entries: implementation, direction
(forward or backward), sizes, configuration. A shape that
is not in it takes the entry of the nearest one (the least sum of |log2| of size ratios). A GPU
without a table is launched by that of another GPU of its architecture, where there is one, else by
the kernel's own default.

What a kernel plans with (its tiles, and what they cost) is in `ops/OP/tuned/KERNEL/DEVICE.json`,
which that kernel reads.
"""

import json
import math
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from tercet.kernel.contract import Sizes
from tercet.kernel.register import folder_of

Configuration = Mapping[str, int]
Direction = Literal["forward", "backward"]


class TunedEntry(TypedDict):
    """One line of a tuned table."""

    implementation: str
    direction: Direction
    sizes: dict[str, int]
    configuration: dict[str, int]


# compute capability -> the GPU of it that kernels were tuned on
_TUNED_ON = {(9, 0): "nvidia-h200"}
_forced: dict[tuple[str, str, Direction], tuple[Configuration, list[Sizes]]] = {}
_known: dict[tuple[object, ...], Configuration] = {}
_device: str | None = None


def configuration(
    op: str,
    implementation: str,
    sizes: Sizes,
    default: Configuration,
    direction: Direction = "forward",
) -> Configuration:
    """What to launch with: the default, overridden by the table's entry for the nearest shape."""
    if (op, implementation, direction) in _forced:
        options, asked = _forced[op, implementation, direction]
        if sizes not in asked:
            asked.append(dict(sizes))
        return {**default, **options}
    device = _device or device_name()
    key = (op, implementation, direction, device, *sizes.items())
    if key not in _known:
        entries = table(op, device) or table(op, _tuned_on(device))
        entry = nearest(entries, implementation, direction, sizes)
        _known[key] = {**default, **(entry["configuration"] if entry else {})}
    return _known[key]


@contextmanager
def force(
    op: str, implementation: str, direction: Direction, options: Configuration
) -> Generator[list[Sizes], None, None]:
    """Every launch in the block takes this configuration: for the tuner.

    Yields:
        The sizes at which the launches asked for theirs, each once. They need not be the call's: a
        kernel that takes rows without gaps as one long row asks for that row.
    """
    asked = list[Sizes]()
    _forced[op, implementation, direction] = options, asked
    try:
        yield asked
    finally:
        del _forced[op, implementation, direction]


@contextmanager
def tables_of(device: str) -> Generator[None, None, None]:
    """Launches in the block are configured by that device's tables, whatever runs them.

    Args:
        device: a GPU as a file name (`nvidia-h200`); one without tables leaves every default.
    """
    global _device
    before, _device = _device, device
    try:
        yield
    finally:
        _device = before


def nearest(
    entries: tuple[TunedEntry, ...], implementation: str, direction: Direction, sizes: Sizes
) -> TunedEntry | None:
    """The entry of the implementation whose sizes are nearest; None where there is none."""
    own = [
        entry
        for entry in entries
        if (entry["implementation"], entry["direction"]) == (implementation, direction)
    ]
    return min(own, key=lambda entry: _distance(entry["sizes"], sizes), default=None)


def table_path(op: str, device: str) -> Path:
    """Where the op's table for that device is, or would be written."""
    return folder_of(op) / "tuned" / f"{device}.json"


@cache
def table(op: str, device: str) -> tuple[TunedEntry, ...]:
    """The op's entries for that device; none where no table was written."""
    path = table_path(op, device)
    entries: list[Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return tuple(entries)


def _tuned_on(device: str) -> str:
    """The GPU whose tables serve that one where it has none; itself where there is no such GPU."""
    if device != device_name() or not torch.cuda.is_available():
        return device
    return _TUNED_ON.get(torch.cuda.get_device_capability(), device)


def forget() -> None:
    """Reads the tables anew on the next call."""
    _known.clear()
    table.cache_clear()


@cache
def device_name() -> str:
    """This machine's GPU as a file name (`nvidia-h200`), or `cpu`."""
    if not torch.cuda.is_available():
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")


def _distance(known: Sizes, wanted: Sizes) -> float:
    return sum(
        abs(math.log2((wanted.get(axis, 0) + 1) / (size + 1))) for axis, size in known.items()
    )
