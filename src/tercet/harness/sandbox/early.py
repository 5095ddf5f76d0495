"""Early: a process for the next judged implementation, which starts while this one imports torch.

Nothing here imports torch: that takes seconds, in both processes at once.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tercet import environment
from tercet.child_process import ChildError
from tercet.harness.sandbox.isolate import MEMORY_BYTES, SECONDS, START_SECONDS, Worker
from tercet.harness.sandbox.pages import anonymous_file, whole_pages

_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_GUEST = "tercet.harness.sandbox.guest"
_ROOM_BYTES = 2**37


@dataclass(frozen=True, kw_only=True)
class Early:
    """A process that was started ahead; on a CPU with the file of the judge's memory."""

    worker: Worker
    file: int | None
    file_bytes: int

    def close(self) -> None:
        """Ends the process and frees the file."""
        self.worker.close()
        if self.file is not None:
            os.close(self.file)


# by device; taken once
_started = dict[str, Early]()


def start_early(device: str | None) -> None:
    """Starts a process with the usual limits, and does not wait for it.

    Args:
        device: "cpu" or "cuda"; None for the one that this machine seems to have.
    """
    device = device or _likely_device()
    size = arena_bytes_of_cpu()
    # a GPU's memory is taken when it is needed
    file = anonymous_file(size) if device == "cpu" else None
    worker = Worker(
        device, descriptors=() if file is None else (file,), ready=f"{_GUEST}:get_ready"
    )
    _started[device] = Early(worker=worker, file=file, file_bytes=size)


def take_early(device: str, seconds: float, memory_bytes: int | None) -> Early | None:
    """The process that was started for that device, if these limits are the usual ones."""
    found = _started.pop(device, None)
    for other in list(_started):
        _started.pop(other).close()
    if found is None:
        return None
    if (seconds, memory_bytes) == (SECONDS, MEMORY_BYTES):
        # what kept it from starting keeps the next one too, and is said there
        with suppress(ChildError):
            found.worker.wait_until_started(START_SECONDS)
            return found
    found.close()
    return None


def arena_bytes_of_cpu() -> int:
    """Of a judged call's memory: as much as there is, for it costs nothing before it is used.

    And room for inputs whose rows lie 2^31 elements apart, of which nothing but the rows is used.
    """
    return whole_pages(psutil.virtual_memory().total + 2 * _ROOM_BYTES)


def _likely_device() -> str:
    return (
        "cuda"
        if not environment.gpus_hidden() and any(path.exists() for path in _DRIVERS)
        else "cpu"
    )
