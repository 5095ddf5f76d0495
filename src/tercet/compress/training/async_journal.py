"""AsyncJournal: lines of the journal, written without making the host wait for the device.

A step is queued long before a GPU does it. If the host waited for each line's numbers, the next
step would begin with nothing queued: 23 ms of 620 on two H200, each without work until the host
had called a forward pass's first operations. So numbers are copied while the host goes on.
"""

from collections import deque
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from tercet.compress.training.device_event import DeviceEvent
from tercet.compress.training.journal import Line

MakeLine = Callable[[list[float], float], Line]
"""Makes a line of (its numbers, seconds since the line before)."""

# more would let a GPU's queue, not this, hold the host back
_MOST_QUEUED = 2


class AsyncJournal:
    """Writes lines in their order, each as soon as the device has sent its numbers.

    Args:
        device: where numbers are computed.
        write: takes a line.
    """

    def __init__(self, device: torch.device, write: Callable[[Line], None]) -> None:
        self._device, self._write = device, write
        self._last = DeviceEvent(device)
        self._queue = deque[tuple[Tensor, DeviceEvent, MakeLine]]()

    def send(self, numbers: Tensor, make_line: MakeLine) -> None:
        """Starts the copy of numbers [n], of which `make_line` will make a line.

        Waits while more than two lines are on their way: the host runs no further ahead.
        """
        # torch copies into pinned memory, as a copy that the host does not wait for needs
        on_host = numbers.to("cpu", non_blocking=True)
        self._queue.append((on_host, DeviceEvent(self._device), make_line))
        while len(self._queue) > _MOST_QUEUED:
            self._write_next()
        while self._queue and self._queue[0][1].query():
            self._write_next()

    def flush(self) -> None:
        """Waits for the numbers of all lines, and writes these."""
        while self._queue:
            self._write_next()

    def _write_next(self) -> None:
        numbers, event, make_line = self._queue.popleft()
        event.synchronize()
        line = make_line(cast("list[float]", numbers.tolist()), event.elapsed_since(self._last))
        self._last = event
        self._write(line)
