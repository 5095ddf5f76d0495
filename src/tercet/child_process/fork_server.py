"""ForkServer: children that begin with what takes seconds to import already there.

A server is a process that imports it once and runs nothing else. Each child is a fork of it, with
standard streams, descriptors and a session of its own; the server says when one has ended, and how.
Linux only: elsewhere a fork of a process that has loaded libraries is not safe.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tercet.errors import TercetError

PROGRAM = Path(__file__).with_name("serve.py")
_MESSAGE_BYTES = 1 << 20
# a child has its own: where it looks for modules, and keeps what it builds; and pytest's, which is
# another in each test
_OF_CHILDREN = ("PYTHONPATH", "TERCET_CACHE", "PYTEST_CURRENT_TEST")
_SERVERS = 3


class ForkError(TercetError):
    """The server cannot fork: it has ended, or threads run in it."""


class ForkServer:
    """A process that forks into children.

    Args:
        environment: all environment variables of it and its children.
        ready: "module:function", called in the server before it forks.
    """

    def __init__(self, environment: Mapping[str, str], ready: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._asking = ours, threading.Lock()
        self._children = dict[int, Forked]()
        with theirs:
            command = [sys.executable, "-P", str(PROGRAM), "--forks", str(theirs.fileno()), ready]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._answer, self._answered = "", threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    @property
    def has_children(self) -> bool:
        """Whether a child of it runs."""
        return bool(self._children)

    def fork(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> "Forked":
        """A child with these environment variables and open files, under the same numbers.

        Waits until the server has imported what it is to. ForkError where it cannot.
        """
        pipes = [os.pipe() for _ in range(3)]
        # the child reads from the first, and writes to the others
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        message = {"environment": dict(environment), "descriptors": list(descriptors)}
        try:
            with self._asking:
                self._answered.clear()
                try:
                    socket.send_fds(
                        self._socket, [json.dumps(message).encode()], [*theirs, *descriptors]
                    )
                except OSError as error:
                    raise ForkError(f"the server that forks children has ended: {error}") from error
                self._answered.wait()
                if not self._answer.isdecimal():
                    raise ForkError(self._answer)
                return self._children[int(self._answer)].open(*ours)
        except ForkError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def close(self) -> None:
        """Ends the server and its children."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        """Takes what the server says: a child's number, how one ended, or why there is none."""
        while True:
            try:
                said = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                said = b""
            if not said:
                break
            words = json.loads(said)
            if "ended" in words:
                self._children.pop(words["ended"]).end(words["status"])
                continue
            if "forked" in words:
                self._children[words["forked"]] = Forked(words["forked"])
            self._answer = str(words.get("forked", words.get("refused")))
            self._answered.set()
        self._socket.close()
        # how they would end is not to be known any more
        for child in list(self._children.values()):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.end(-signal.SIGKILL)
        self._answer = "the server that forks children has ended"
        self._answered.set()


# by environment and what is loaded: those that a child was asked for with, and servers, the last
# one asked at the end
_asked, _servers = set[object](), dict[object, ForkServer]()
_choosing = threading.Lock()


def server_for(environment: Mapping[str, str], preload: str) -> ForkServer | None:
    """What forks children of this environment, from the second on: a server takes as long as one.

    None for the first, and where there are no servers. Another PYTHONPATH makes no other server:
    what is loaded must be the same on each.
    """
    if sys.platform != "linux":
        return None
    lasting = (each for each in environment.items() if each[0] not in _OF_CHILDREN)
    key = (preload, frozenset(lasting))
    with _choosing:
        if key not in _asked:
            _asked.add(key)
            return None
        found = _servers.pop(key, None)
        if found is None or not found.alive:
            found = ForkServer(environment, preload)
        _servers[key] = found
        for other in list(_servers)[:-_SERVERS]:
            if not _servers[other].has_children:
                _servers.pop(other).close()
    return found


class Forked:
    """A child of a ForkServer, as `subprocess.Popen` has one."""

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO
    returncode: int | None = None

    def __init__(self, pid: int) -> None:
        self.pid, self._ended = pid, threading.Event()

    def open(self, stdin: int, stdout: int, stderr: int) -> "Forked":
        """With our ends of its standard streams."""
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout, self.stderr = os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")
        return self

    def end(self, status: int) -> None:
        """Notes how it ended."""
        self.returncode = status
        self._ended.set()

    def poll(self) -> int | None:
        """The exit status, minus the signal that ended it; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status once it has ended. subprocess.TimeoutExpired after so many seconds."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired([str(PROGRAM)], timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def wait_until_stopped(self) -> None:
        """Until a signal to stop has reached it, or it has ended."""
        while self.returncode is None:
            try:
                state = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
            except OSError:
                return
            if state[0] in "TtZX":
                return
            os.sched_yield()
