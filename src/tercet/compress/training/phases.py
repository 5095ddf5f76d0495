"""Phases: how long each part of a step takes, on the device's own clock."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from tercet.compress.training.device_event import DeviceEvent

Spans = list[tuple[str, DeviceEvent, DeviceEvent]]
"""Names and when each began and ended."""


class Phases:
    """Keeps spans by name until they are taken; measuring does not make the host wait.

    Args:
        device: whose clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: Spans = []

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        """Times the block under that name."""
        first = DeviceEvent(self._device)
        yield
        self._spans.append((name, first, DeviceEvent(self._device)))

    def take(self) -> Spans:
        """The spans since the last call, for `seconds` once the device has reached their ends."""
        taken, self._spans = self._spans, []
        return taken


def seconds(spans: Spans) -> dict[str, float]:
    """Sums by name."""
    found: dict[str, float] = {}
    for name, first, last in spans:
        found[name] = found.get(name, 0.0) + last.elapsed_since(first)
    return found
