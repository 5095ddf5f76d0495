"""The program of a child process: it receives requests and sends replies, one at a time.

Requests come on standard input and replies go out on the descriptor that standard output was, each
as eight bytes of length and JSON, or where it holds tensors or dtypes a torch.save, which takes a
millisecond more. What the child prints goes to standard
error. The first message is sent when Python and torch have started, and the function that the
command line names ("module:function"), if it names one, has been called.

With `--forks DESCRIPTOR` it answers nothing itself: it calls the function and then forks, at each
message of that socket, into a child that does (see `fork_server.py`).

The parent runs this file by its path, and it imports nothing of Tercet: a child may run under
another revision's PYTHONPATH, which has another version of this file, or none.
"""

import faulthandler
import fcntl
import gc
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

_MESSAGE_BYTES, _MOST_FILES = 1 << 20, 64
_ZIP = b"PK"  # what torch.save writes begins so


def main() -> None:
    """Answers requests until standard input ends."""
    # a crash names the line that it came from
    faulthandler.enable()
    forks = sys.argv[1:2] == ["--forks"]
    for ready in sys.argv[3:] if forks else sys.argv[1:]:
        find_function(ready)()
    if forks:
        become_fork(socket.socket(fileno=int(sys.argv[2])))
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    send(replies, {"result": None})
    while (request := receive(requests)) is not None:
        send(replies, answer(request))


def become_fork(server: socket.socket) -> None:
    """Forks at each message; returns in the children alone, and ends the server with its socket.

    A message has `environment` and `descriptors`, the numbers that open files are to have; the
    files come with it, those of the standard streams first. The server says `forked`, a child's
    number, or why it is `refused`; and as soon as a child has `ended`, its `status`.
    """
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, _wake)
    # what is here stays: a collection in a child need not look at it, nor copy its pages
    gc.collect()
    gc.freeze()
    signal.set_wakeup_fd(waker)
    while True:
        readable, _, _ = select.select([server, woken], [], [])
        if woken in readable:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ended(server)
        if server not in readable:
            continue
        said, files, _, _ = socket.recv_fds(server, _MESSAGE_BYTES, _MOST_FILES)
        if not said:
            os._exit(0)
        wanted = json.loads(said)
        # threads would be missing in the child, with the locks that they held
        threads = len(os.listdir("/proc/self/task"))
        pid = os.fork() if threads == 1 else -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, waker, server.detach()):
                os.close(descriptor)
            os.setsid()
            _take_variables(wanted["environment"])
            _renumber(files, [0, 1, 2, *wanted["descriptors"]])
            return
        for descriptor in files:
            os.close(descriptor)
        word = {"forked": pid} if pid > 0 else {"refused": f"{threads} threads run in the server"}
        server.send(json.dumps(word).encode())


def _take_variables(variables: dict[str, str]) -> None:
    """These in place of the server's; modules are looked for on their PYTHONPATH from now on."""
    before, now = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, variables))
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = [*filter(None, now), *(each for each in sys.path if each not in (*before, *now))]


def _wake(*_: object) -> None:
    """A signal that is handled wakes up who waits; one that is not, does not."""


def _tell_ended(server: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            word = {"ended": ended[0], "status": os.waitstatus_to_exitcode(ended[1])}
            server.send(json.dumps(word).encode())


def _renumber(files: list[int], numbers: list[int]) -> None:
    """Gives open files these numbers."""
    # at first numbers beyond all of them: one that is wanted may be another's now
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, max(*numbers, *files) + 1) for each in files]
    for each in files:
        os.close(each)
    for each, number in zip(high, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the requested function returns, or what it raises.

    Args:
        request: `function`, "package.module:name" or "/path/of/file.py:name", and `arguments`.
    """
    try:
        return {"result": find_function(request["function"])(**request["arguments"])}
    except Exception as error:  # noqa: BLE001 everything that goes wrong is the answer
        return {
            "error": traceback.format_exception_only(error)[-1].strip(),
            "message": str(error),
            "classes": [each.__name__ for each in type(error).__mro__],
            "trace": traceback.format_exc()[-4000:],
        }


def find_function(name: str) -> Callable[..., Any]:
    """The function of a module or of a file; either is imported once."""
    module, _, function = name.rpartition(":")
    find = _import_file if module.endswith(".py") else import_module
    return getattr(find(module), function)


@cache
def _import_file(path: str) -> Any:
    name = f"tercet_child_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def send(stream: BinaryIO, content: Any) -> None:
    """Writes one message of plain data and CPU tensors."""
    if _is_plain(content):
        data = memoryview(json.dumps(content).encode())
    else:
        memory = io.BytesIO()
        torch.save(_on_cpu(content), memory)
        data = memory.getbuffer()
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; None at the end. Loading runs no code of the sender."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(struct.unpack("<q", head)[0])
    if data[:2] != _ZIP:
        return json.loads(data)
    return torch.load(io.BytesIO(data), weights_only=True)


def _is_plain(content: Any) -> bool:
    """Whether JSON gives it back as it is, but for tuples."""
    if isinstance(content, dict):
        items = cast(dict[Any, Any], content)
        return all(isinstance(key, str) and _is_plain(value) for key, value in items.items())
    if isinstance(content, list | tuple):
        return all(_is_plain(value) for value in cast(list[Any], content))
    return content is None or type(content) in (str, int, float, bool)


def _on_cpu(content: Any) -> Any:
    if isinstance(content, Tensor):
        return content.detach().cpu()
    if isinstance(content, dict):
        items = cast(dict[Any, Any], content)
        return {key: _on_cpu(value) for key, value in items.items()}
    if isinstance(content, list | tuple):
        return [_on_cpu(value) for value in cast(list[Any], content)]
    return content


if __name__ == "__main__":
    main()
