"""Isolate: runs functions in a child process, with a limit on time and memory.

The judge's references, inputs and clock are in another process than the code that is judged.
"""

import os
import sys
from typing import Any

from tercet.child_process import Child

SECONDS = 120.0
MEMORY_BYTES = 12 * 2**30
START_SECONDS = 300.0
_READY = "tercet.harness.sandbox.guest:get_ready"


class Worker(Child):
    """A child process for code that is judged.

    Args:
        device: "cpu" hides GPUs and turns Triton's interpreter on; "cuda" leaves both as they are.
        seconds: the default limit for one call.
        memory_bytes: of resident memory; more ends the child.
        prefix: a command to run the child under (compute-sanitizer).
        paths: directories that the child imports from, before all others.
        descriptors: as Child's.
        ready: as Child's; then the process is not waited for before the first call.
        threads: of OpenMP, for calls that are timed: then Triton is not interpreted either.
        fresh: a process of its own from the start; others may be forks of one that has imported
            torch, and then have their hashes and their addresses in common.
    """

    def __init__(
        self,
        device: str = "cpu",
        seconds: float = SECONDS,
        memory_bytes: int | None = MEMORY_BYTES,
        prefix: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
        descriptors: tuple[int, ...] = (),
        ready: str | None = None,
        threads: int | None = None,
        fresh: bool = False,
    ) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join((*paths, *(p for p in sys.path if p)))
        if device == "cpu":
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads or 1)}
            if threads is None:
                # many small calls: threads would wait for each other on a busy machine
                environment["TRITON_INTERPRET"] = "1"
        own = device != "cpu" or fresh or bool(prefix) or ready is not None
        super().__init__(
            seconds=seconds,
            memory_bytes=memory_bytes,
            prefix=prefix,
            environment=environment,
            descriptors=descriptors,
            ready=ready,
            # libraries start their threads as they are imported, and only one thread is forked
            preload=None if own or (threads or 1) > 1 else _READY,
        )
        if ready is None:
            self.wait_until_started(START_SECONDS)

    def call(self, function: str, seconds: float | None = None, **arguments: Any) -> Any:
        """As Child.request."""
        return self.request(function, arguments, seconds)
