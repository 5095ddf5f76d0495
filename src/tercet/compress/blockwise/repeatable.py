"""repeatable: the same training gives the same bytes each time."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import torch


@contextmanager
def repeatable(device: torch.device) -> Generator[None]:
    """Within the block a GPU adds gradients in the same order each time, as a CPU does.

    Attention in float32 does not by itself. cuBLAS, asked for that, warns where an environment
    variable is not set: on one stream, as here, it gives the same each time without.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    memory = cast(Any, torch.utils.deterministic)
    fill = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False
    try:
        with catch_warnings():
            simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = fill
