"""Arguments: checks the device, the dtype and the sizes that a caller asked for; which are tied."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tercet.errors import UnsupportedError
from tercet.kernel.contract import Op

_DTYPES = ("bfloat16", "float16", "float32")


def device_or_best(device: str | None) -> str:
    """The device that was asked for, or the best there is. UnsupportedError for another word, and
    for a GPU that is not there."""
    if device not in (None, "cpu", "cuda"):
        raise UnsupportedError(f"device {device!r}: allowed are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError("device 'cuda': this machine has no GPU that torch can use; try cpu")
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name. UnsupportedError where torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        *others, last = _DTYPES
        raise UnsupportedError(f"dtype {name!r}: allowed are {', '.join(others)} and {last}")
    return found


def known_axes(op: Op, names: Iterable[str]) -> None:
    """UnsupportedError where a name is none of the op's axes."""
    axes = [axis.name for axis in op.axes]
    if unknown := set(names) - set(axes):
        raise UnsupportedError(f"{op.name!r} has no axes {sorted(unknown)}: it has {axes}")


def complete_sizes(op: Op, sizes: Mapping[str, int]) -> None:
    """UnsupportedError where an axis of the op has no size."""
    if missing := [axis.name for axis in op.axes if axis.name not in sizes]:
        raise UnsupportedError(
            f"sizes {dict(sizes)}: {op.name!r} also needs a size for {', '.join(missing)}"
        )


def tied_arguments(op: Op, arguments: Mapping[str, Any]) -> set[str]:
    """Those at hand that are made of others, and those others: none may change without the rest."""
    made = {name for name in op.derived if arguments.get(name) is not None}
    return made | {source for name in made for source in op.derived[name]}
