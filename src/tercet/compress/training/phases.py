"""Phases: how long each part of a step takes, on the device's own clock."""

import time
from collections.abc import Generator
from contextlib import contextmanager

import torch


class Phases:
    """Sums times by name until they are taken.

    On a GPU the clock is that of the stream, read only when times are taken: measuring does not
    make it wait.

    Args:
        device: whose clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        """Times the block under that name."""
        if self._cuda:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._events.append((name, first, last))
            return
        start = time.perf_counter()
        yield
        self._add(name, time.perf_counter() - start)

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call; waits for the device."""
        for name, first, last in self._events:
            last.synchronize()
            self._add(name, first.elapsed_time(last) / 1e3)
        self._events.clear()
        taken, self._seconds = self._seconds, {}
        return taken
