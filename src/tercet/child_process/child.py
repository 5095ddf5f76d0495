"""Child: the parent's side of a Python child process, with limits on its time and memory.

A crash, an endless loop or a flood of memory in the child becomes a ChildError here.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import psutil

from tercet.child_process.fork_server import PROGRAM, Forked, ForkError, server_for
from tercet.errors import TercetError

_POLL_SECONDS = 0.05
_TAIL_CHARACTERS = 2000
_ERROR = {"error", "message", "classes", "trace"}


class ChildError(TercetError):
    """A request that has no result.

    Attributes:
        kind: "raised": the function raised an exception, and the child lives on; "crashed": the
            child ended or sent something else than a reply; "time" or "memory": it passed that
            limit and was ended.
        message: the exception's own message, or how the child ended.
        classes: names of the exception's class and of its bases; empty unless one was raised.
        log: the traceback, or the end of what the child wrote to standard error.
        status: exit status of a child that crashed; minus the signal that ended it.
    """

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        message: str | None = None,
        classes: Sequence[str] = (),
        log: str = "",
        status: int = 0,
    ) -> None:
        super().__init__(text)
        self.kind, self.message = kind, text if message is None else message
        self.classes, self.log, self.status = tuple(classes), log, status


class Child:
    """A child process that answers requests, one at a time.

    Args:
        seconds: the default limit for one request.
        memory_bytes: the limit on resident memory; None for no limit.
        prefix: a command to run the child under (compute-sanitizer).
        environment: all environment variables of the child; None for those of this process.
        descriptors: open files that the child inherits, under the same numbers.
        ready: "module:function", called in the child ahead of the first request.
        preload: "module:function", as `ready`, of which children of the same environment may have
            one call in common: from the second on they are forks of a process that has made it,
            where that can be, and have hashes and addresses in common, too. Without a prefix.
    """

    def __init__(
        self,
        *,
        seconds: float,
        memory_bytes: int | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        ready: str | None = None,
        preload: str | None = None,
    ) -> None:
        self._seconds, self._memory = seconds, memory_bytes
        self._started, self._why_ended = False, ("", "")
        self._said, self._hearing = bytearray(), threading.Lock()
        variables = os.environ if environment is None else environment
        forked = None if preload is None else _fork(preload, variables, descriptors)
        self._process = forked or _start(prefix, ready or preload, variables, descriptors)
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

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

    def wait_until_started(self, seconds: float) -> None:
        """Waits for Python and torch, so that their start counts against no request's limit."""
        if not self._started:
            self._exchange(None, seconds)

    def request(
        self, function: str, arguments: Mapping[str, Any], seconds: float | None = None
    ) -> Any:
        """The result of a function with these arguments in the child.

        Arguments and results are tensors, numbers, strings, None, torch dtypes, and lists and dicts
        of them (a tuple arrives as a list); tensors arrive on the CPU, with their strides.

        Args:
            function: "package.module:name", or "/path/of/file.py:name".
            arguments: by name.
            seconds: the limit for this request; None for the default.

        Raises:
            ChildError: on an exception, a crash, or a limit that was passed; after the last two
                the child is gone.
        """
        message = {"function": function, "arguments": dict(arguments)}
        return self._exchange(message, seconds or self._seconds)

    def queued_us(self) -> float:
        """How long its main thread, and the caller's, have waited for a core until now.

        In microseconds since they began; 0 where the kernel does not tell (Linux's schedstat).
        """
        return sum(map(_queued_us, (f"/proc/{self.pid}/schedstat", "/proc/thread-self/schedstat")))

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Nothing of the child or of what it started runs in the block."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.killpg(self._process.pid, signal.SIGSTOP)
            # a signal only asks: on a busy machine the child runs on for a moment
            if isinstance(self._process, Forked):
                self._process.wait_until_stopped()
            else:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)

    def finish(self, seconds: float) -> None:
        """Lets the child end by itself: no more requests come. Call `close` after it."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def close(self) -> None:
        """Ends the child and everything it started."""
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError, ValueError):
                    pipe.close()

    def _exchange(self, message: dict[str, Any] | None, limit: float) -> Any:
        """Sends the message, if there is one, and receives its reply; the start's comes first."""
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, limit), daemon=True)
        watch.start()
        try:
            if not self._started:
                self._receive()
                self._started = True
            if message is None:
                return None
            # a child that has ended reads nothing: the reply that is missing says so
            with suppress(BrokenPipeError):
                _messages().send(cast(BinaryIO, self._process.stdin), message)
            reply = self._receive()
        finally:
            done.set()
            watch.join()
        if "error" in reply:
            raise ChildError(
                "raised",
                f"{reply['error']}\n{reply['trace']}",
                message=reply["message"],
                classes=reply["classes"],
                log=reply["trace"],
            )
        return reply["result"]

    def _receive(self) -> dict[str, Any]:
        try:
            reply = _messages().receive(cast(BinaryIO, self._process.stdout))
        except Exception as error:
            self._kill()
            raise self._ended("sent what is no reply and ended") from error
        if reply is None:
            raise self._ended("ended")
        content = cast("dict[str, Any]", reply) if isinstance(reply, dict) else {}
        if "result" not in content and not content.keys() >= _ERROR:
            self._kill()
            raise self._ended("sent what is no reply and ended")
        return content

    def _ended(self, how: str) -> ChildError:
        status = self._process.wait()
        kind, why = self._why_ended
        if kind:
            return ChildError(kind, why, log=self.said, status=status)
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        tail = self.said[-_TAIL_CHARACTERS:]
        return ChildError(
            "crashed", f"the process {how} with {cause}: {tail}", log=self.said, status=status
        )

    def _watch(self, done: threading.Event, limit: float) -> None:
        start = time.monotonic()
        # where only time is limited nothing wakes up before it is over, which timings would show
        interval = limit if self._memory is None else min(_POLL_SECONDS, limit)
        while not done.wait(interval):
            if time.monotonic() - start >= limit:
                self._why_ended = ("time", f"it took longer than {limit:g} s and was ended")
            elif self._memory is not None and resident_bytes(self._process.pid) > self._memory:
                gib = self._memory / 2**30
                self._why_ended = (
                    "memory",
                    f"it took more than {gib:.1f} GiB of memory and was ended",
                )
            if self._why_ended[0]:
                self._kill()
                return

    def _kill(self) -> None:
        """Kills the child, its process group, and descendants in groups of their own."""
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            family = []
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in family:
            with suppress(psutil.Error):
                process.kill()

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


def _fork(
    preload: str, environment: Mapping[str, str], descriptors: Sequence[int]
) -> Forked | None:
    server = server_for(environment, preload)
    try:
        return None if server is None else server.fork(environment, descriptors)
    except ForkError:
        return None


def _start(
    prefix: Sequence[str],
    ready: str | None,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    # -P: the folder of the program is not on the child's path, where its files would shadow
    # modules of other packages
    return subprocess.Popen(
        [*prefix, sys.executable, "-P", str(PROGRAM), *([ready] if ready else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )


def _messages() -> Any:
    """How messages are written and read: needs torch, which a child starts without waiting for."""
    return import_module("tercet.child_process.serve")


def _queued_us(path: str) -> float:
    try:
        return float(Path(path).read_text(encoding="ascii").split()[1]) / 1e3
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all that it started; 0 once it is gone."""
    total = 0
    with suppress(psutil.Error):
        child = psutil.Process(pid)
        for process in (child, *child.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total
