"""Buffers that are saved with a model; the others follow from its configuration."""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn


def saved_buffers(model: nn.Module, leave_out: type[nn.Module] | None = None) -> dict[str, Tensor]:
    """Those of a module and all below it, by name.

    Args:
        model: the module that names begin at.
        leave_out: a class of modules whose own are not wanted.
    """
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    return {
        f"{module}.{name}".removeprefix("."): buffer
        for module, owner in named
        if leave_out is None or not isinstance(owner, leave_out)
        for name, buffer in owner.named_buffers(recurse=False)
        if name not in owner._non_persistent_buffers_set  # pyright: ignore[reportPrivateUsage]
    }
