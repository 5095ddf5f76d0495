"""Isolate: runs functions in a child process, with a limit on time and memory.

The judge's references, inputs and clock are in another process than the code that is judged. A
crash, an endless loop or a flood of memory in the child becomes an error here.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, cast

import psutil

from tercet.harness.worker import receive, send

SECONDS = 120.0
MEMORY_BYTES = 12 * 2**30
_LOOK_EVERY_SECONDS = 0.05
_START_SECONDS = 300.0


class WorkerError(Exception):
    """What went wrong in the child: `kind` is raised, crashed, time or memory."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """A child process that answers calls, one at a time.

    Args:
        device: "cpu" hides GPUs and turns Triton's interpreter on; "cuda" leaves both as they are.
        seconds: the default limit for one call.
        memory_bytes: of resident memory; more ends the child.
        prefix: a command to run the child under (compute-sanitizer).
        paths: directories that the child imports from, before all others.
    """

    def __init__(
        self,
        device: str = "cpu",
        seconds: float = SECONDS,
        memory_bytes: int | None = MEMORY_BYTES,
        prefix: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
    ) -> None:
        self._seconds, self._memory, self._why = seconds, memory_bytes, ""
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join((*paths, *(p for p in sys.path if p)))
        if device == "cpu":
            environment |= {
                "TRITON_INTERPRET": "1",
                "CUDA_VISIBLE_DEVICES": "",
                # many small calls: threads would wait for each other on a busy machine
                "OMP_NUM_THREADS": "1",
            }
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tercet.harness.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._said, self._hearing = bytearray(), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        # starting Python counts against nobody's limit
        self.call("tercet.harness.worker:ready", seconds=_START_SECONDS)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """The end of what the child wrote to standard error, up to its last answer or its end."""
        with suppress(ValueError, OSError):
            self._hear(wait=False)
        return self._said[-8000:].decode(errors="replace")

    def call(self, function: str, seconds: float | None = None, **arguments: Any) -> Any:
        """The result of `package.module:function` with these arguments in the child.

        Arguments and results are tensors, numbers, strings, None, torch dtypes, and lists and dicts
        of them (a tuple arrives as a list); tensors arrive on the CPU, with their strides.
        WorkerError on an exception, a crash, or a limit that was passed; after the last three the
        child is gone.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        limit = seconds or self._seconds
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, limit), daemon=True)
        watch.start()
        try:
            with suppress(BrokenPipeError):
                send(cast(BinaryIO, stdin), {"function": function, "arguments": arguments})
            reply = receive(cast(BinaryIO, stdout))
        finally:
            done.set()
            watch.join()
        if reply is None:
            raise self._ended()
        if "error" in reply:
            raise WorkerError("raised", f"{reply['error']}\n{reply['trace']}")
        return reply["result"]

    def close(self) -> None:
        """Ends the child and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError, ValueError):
                    pipe.close()

    def _ended(self) -> WorkerError:
        status = self._process.wait()
        if self._why:
            kind = "memory" if "memory" in self._why else "time"
            return WorkerError(kind, self._why)
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return WorkerError("crashed", f"the process ended with {cause}: {self.said[-2000:]}")

    def _watch(self, done: threading.Event, limit: float) -> None:
        start = time.monotonic()
        while not done.wait(_LOOK_EVERY_SECONDS):
            if time.monotonic() - start > limit:
                self._why = f"it took longer than {limit:g} s and was ended"
            elif self._memory is not None and self._resident() > self._memory:
                self._why = (
                    f"it took more than {self._memory / 2**30:.1f} GiB of memory and was ended"
                )
            if self._why:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                return

    def _resident(self) -> int:
        try:
            return psutil.Process(self._process.pid).memory_info().rss
        except psutil.Error:
            return 0

    def _listen(self) -> None:
        with suppress(ValueError, OSError):
            while self._hear(wait=True):
                pass

    def _hear(self, wait: bool) -> bool:
        """Takes what is in the pipe of standard error; whether more may come."""
        stderr = self._process.stderr
        assert stderr is not None
        pipe = select.poll()
        pipe.register(stderr.fileno(), select.POLLIN)
        if wait:
            pipe.poll()
        with self._hearing:
            while pipe.poll(0):
                chunk = os.read(stderr.fileno(), 65536)
                if not chunk:
                    return False
                self._said += chunk
                del self._said[:-64000]
        return True
