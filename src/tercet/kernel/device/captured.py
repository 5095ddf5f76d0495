"""Captured: kernels that a function launches, as a CUDA graph."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

_Result = TypeVar("_Result")

# allocations, compilations and choices of the first calls must not be captured
_WARM_UP = 2


def warm_up(run: Callable[[], object], device: torch.device) -> None:
    """Runs a function as often as its kernels need before they are captured."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(stream)


class Captured(Generic[_Result]):
    """Kernels that a function launches, captured without running them, and the function.

    A graph reads the memory of whatever its function reads and keeps none of it: what nobody else
    keeps would be freed, and the next allocation there would change what the graph computes. So the
    function is kept, and with it all that it refers to.

    Args:
        run: what is captured; it refers to nothing that refers to this object, or the graph would
            outlive both, until the garbage collector frees it, perhaps within another's capture,
            which CUDA forbids.
        device: that it launches them on.

    Attributes:
        result: what the function gave, in the graph's own memory: every replay overwrites it.
    """

    def __init__(self, run: Callable[[], _Result], device: torch.device) -> None:
        self._run, self._device = run, device
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(self._graph):
            self.result = run()

    def replay(self) -> None:
        """Runs them."""
        with torch.cuda.device(self._device):
            self._graph.replay()
