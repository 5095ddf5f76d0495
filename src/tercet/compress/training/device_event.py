"""DeviceEvent: a point in a device's work, timed by the device's own clock."""

import time

import torch


class DeviceEvent:
    """Follows all the work that a device has been given so far; a GPU may reach it later.

    Args:
        device: whose clock; a GPU's is that of its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        """Whether the device has done all that came before."""
        return self._event is None or self._event.query()

    def synchronize(self) -> None:
        """Waits until the device has."""
        if self._event is not None:
            self._event.synchronize()

    def elapsed_since(self, earlier: "DeviceEvent") -> float:
        """Seconds between two events that the device has reached."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        return earlier._event.elapsed_time(self._event) / 1e3
