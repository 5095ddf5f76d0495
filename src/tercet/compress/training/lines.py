"""Lines: of the journal, on their way from the device.

A step is queued long before a GPU does it. If the host waited for each line's numbers, the next
step would begin with nothing queued: 23 ms of 620 on two H200, each without work until the host
had called a forward pass's first operations. So numbers are copied while the host goes on.
"""

from collections import deque
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from tercet.compress.training.journal import Line
from tercet.compress.training.moment import Moment

Finish = Callable[[list[float], float], Line]
"""(numbers of a line, seconds since the line before) to the line."""

# more would let a GPU's queue, not this, hold the host back
_MOST = 2


class Lines:
    """Writes lines in their order, each once its numbers have arrived.

    Args:
        device: where numbers are computed.
        write: takes a line.
    """

    def __init__(self, device: torch.device, write: Callable[[Line], None]) -> None:
        self._device, self._write = device, write
        self._last = Moment(device)
        self._sent = deque[tuple[Tensor, Moment, Finish]]()

    def send(self, numbers: Tensor, finish: Finish) -> None:
        """Starts the copy of numbers [n], of which `finish` will make a line.

        Waits where the line before the last is still on its way: the host stays that near.
        """
        # torch copies into pinned memory, as a copy that the host does not wait for needs
        there = numbers.to("cpu", non_blocking=True)
        self._sent.append((there, Moment(self._device), finish))
        while len(self._sent) > _MOST:
            self._next()
        while self._sent and self._sent[0][1].reached():
            self._next()

    def finish(self) -> None:
        """Waits for all, and writes them."""
        while self._sent:
            self._next()

    def _next(self) -> None:
        numbers, moment, finish = self._sent.popleft()
        moment.wait()
        line = finish(cast("list[float]", numbers.tolist()), moment.since(self._last))
        self._last = moment
        self._write(line)
