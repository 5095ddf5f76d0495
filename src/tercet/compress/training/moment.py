"""Moment: a point in a device's work, by the device's own clock."""

import time

import torch


class Moment:
    """Now, after all that a device has been given to do; a GPU may reach it later.

    Args:
        device: whose clock; a GPU's is that of its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._seconds = time.perf_counter()

    def reached(self) -> bool:
        """Whether the device has done all that came before."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Until the device has."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "Moment") -> float:
        """Seconds between two moments that were reached."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        return earlier._event.elapsed_time(self._event) / 1e3
