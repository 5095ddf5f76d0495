"""Fresh process: calls a function in a Python of its own, which sees the sources as they are now.

A server lives long and the ops that it is asked about are edited meanwhile; what it has imported
once it would never see change. The child also keeps a crash, and whatever an op prints, out of the
server. Starting one and importing torch takes seconds, so from the second on children are forks of
a process that has imported torch and nothing of Tercet, and `keep_one_ready` does the rest before
the call comes; a child that has imported a file which was changed since is not used.
"""

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic_core import to_jsonable_python

from tercet.child_process import Child, ChildError
from tercet.child_process.serve import find_function
from tercet.errors import TercetError

_READY_SECONDS = 600.0
# what children may have in common: nothing of Tercet, whose files may be edited meanwhile
_PRELOAD = "torch._dynamo:is_compiling"
_PACKAGE = Path(__file__).parents[1]


class CallError(TercetError):
    """A call that ended with one of our errors, took too long, or took its process with it."""


async def call(function: str, arguments: dict[str, Any], *, seconds: float) -> Any:
    """The function's result as plain JSON data.

    Args:
        function: "module:name"; takes and returns what JSON or pydantic can hold.
        arguments: by name.
        seconds: after which it, and every process that it started, is ended.

    Raises:
        CallError: with the message of the child's TercetError, or how the child ended.
    """
    ready = next(iter(_ready), None)
    child = await anyio.to_thread.run_sync(ready.take) if ready is not None else None
    if child is None:
        child = _start(seconds)
    request = {"function": function, "arguments": arguments}
    try:
        return await anyio.to_thread.run_sync(
            partial(child.request, f"{__name__}:call_as_json", request, seconds),
            abandon_on_cancel=True,
        )
    except ChildError as error:
        raise CallError(_message(error, seconds)) from error
    finally:
        child.close()
        if ready is not None:
            ready.begin()


def _start(seconds: float) -> Child:
    # numpy's threads, which start as it is imported, would keep a process from being forked
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return Child(seconds=seconds, environment=variables, preload=_PRELOAD)


@contextmanager
def keep_one_ready(module: str) -> Generator[None]:
    """Inside, a child that has imported the module waits for each call.

    Args:
        module: with a function `get_ready()`, called in the child ahead of the call.
    """
    _ready.append(_Ready(module))
    try:
        yield
    finally:
        _ready.pop().close()


class _Ready:
    """A child that waits for a call."""

    def __init__(self, module: str) -> None:
        self._module, self._lock, self._closed = module, threading.Lock(), False
        self._waiting: _Waiting | None = None
        self.begin()

    def begin(self) -> None:
        """Starts the child, where none waits: after a call, which needs the cores itself."""
        with self._lock:
            if self._waiting is None and not self._closed:
                self._waiting = _Waiting(self._module)

    def take(self) -> Child | None:
        """The child that waits; None where none does, or it has imported what has changed since."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.fits():
            return waiting and waiting.child
        waiting.child.close()
        return None

    def close(self) -> None:
        """Ends it; no other one is started."""
        with self._lock:
            self._closed = True
            if self._waiting is not None:
                self._waiting.child.close()


class _Waiting:
    def __init__(self, module: str) -> None:
        self._imported: list[str] | None = None
        # taken before the child can import anything
        self._sources = _stamps()
        self.child = _start(_READY_SECONDS)
        self._thread = threading.Thread(target=self._prepare, args=(module,), daemon=True)
        self._thread.start()

    def fits(self) -> bool:
        self._thread.join()
        if self._imported is None or not self.child.alive:
            return False
        now, before = _stamps(), self._sources
        return all(file in before and now.get(file) == before[file] for file in self._imported)

    def _prepare(self, module: str) -> None:
        with suppress(ChildError):
            self._imported = self.child.request(f"{__name__}:get_ready", {"module": module})


_ready = list[_Ready]()


def get_ready(module: str) -> list[str]:
    """In the child, ahead of a call: the files of the package that it has imported."""
    find_function(f"{module}:get_ready")()
    files = [getattr(each, "__file__", None) for each in list(sys.modules.values())]
    return [file for file in files if file and Path(file).is_relative_to(_PACKAGE)]


def _stamps() -> dict[str, tuple[int, ...]]:
    """What tells one state of each source file from another, read from the files alone.

    Times of files are compared with each other only: the file system's clock ticks more coarsely
    than the process's, so a file changed after an event can carry an earlier time than the event.
    """
    found = dict[str, tuple[int, ...]]()
    for file in _PACKAGE.rglob("*.py"):
        with suppress(OSError):
            stat = file.stat()
            found[str(file)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


def call_as_json(function: str, arguments: dict[str, Any]) -> Any:
    """In the child: what the function returns, as plain JSON data."""
    return to_jsonable_python(find_function(function)(**arguments))


def _message(error: ChildError, seconds: float) -> str:
    if error.kind == "time":
        return (
            f"not done after {seconds:g} s: ask for less (one implementation, one model), or allow "
            "more seconds"
        )
    if TercetError.__name__ in error.classes:
        return " ".join(error.message.split())
    return str(error)
