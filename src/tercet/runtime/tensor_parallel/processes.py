"""Starts the ranks of a command, hands their text on, and ends them; without torch."""

import multiprocessing
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from tercet import errors
from tercet.checkpoints.seal import Verification, verified
from tercet.child_process.child import ChildError
from tercet.errors import TercetError, UnsupportedError
from tercet.runtime.generation import Generation
from tercet.runtime.tensor_parallel.messages import Done, Failed, Job, Loaded, Message, Text

# a rank that failed for the end of another may say so before that end is seen
_GRACE_SECONDS = 2.0


class RankStream:
    """Pieces of text as rank 0 makes them; once exhausted, `result` holds the whole Generation.

    Args:
        job: what the ranks do.
        verify: as `verified` takes it: no text comes before the files' hashes were found right.
        processes: the ranks.
        connections: to each.
    """

    def __init__(
        self,
        job: Job,
        verify: bool | Verification,
        processes: Sequence[SpawnProcess],
        connections: Sequence[Connection],
    ) -> None:
        self._job, self._verify = job, verify
        self._processes, self._connections = processes, connections
        self._done: dict[int, Done] = {}

    def __iter__(self) -> Iterator[str]:
        early, messages = list[str](), self._receive()
        with verified(self._job.directory, self._verify):
            loaded = 0
            while loaded < self._job.world_size:
                message = next(messages)
                loaded += isinstance(message, Loaded)
                early += [message.chunk] if isinstance(message, Text) else []
        yield from early
        while len(self._done) < self._job.world_size:
            message = next(messages)
            if isinstance(message, Text):
                yield message.chunk

    @property
    def result(self) -> Generation:
        """Rank 0's; UnsupportedError before the stream has been read to its end."""
        if len(self._done) < self._job.world_size:
            raise UnsupportedError("the stream is not finished: read it to its end first")
        return self._done[0].result

    @property
    def peak_bytes(self) -> int:
        """Of the host's memory, by the rank that took the most."""
        return max(done.peak_bytes for done in self._done.values())

    def _receive(self) -> Iterator[Message]:
        """What the ranks say, as it comes; raises what one of them failed of."""
        while True:
            for connection in wait(self._connections):
                rank = self._connections.index(cast(Connection, connection))
                message = self._read(rank)
                if message is None:
                    raise self._describe_end(rank)
                if isinstance(message, Failed):
                    raise self._find_cause(rank, message)
                if isinstance(message, Done):
                    self._done[rank] = message
                yield message

    def _read(self, rank: int) -> Message | None:
        """The next message of a rank that has one; None where the rank has ended."""
        try:
            return self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def _find_cause(self, rank: int, failed: Failed) -> TercetError:
        """A rank's failure, or the end of another rank that it failed for."""
        if failed.refused:
            kind: type[TercetError] = getattr(errors, failed.kind)
            return kind(failed.message)
        others = [one for one in self._connections if one is not self._connections[rank]]
        while ready := wait(others, _GRACE_SECONDS):
            for connection in ready:
                other = self._connections.index(cast(Connection, connection))
                message = self._read(other)
                if message is None:
                    return self._describe_end(other)
                if isinstance(message, Failed):
                    others.remove(self._connections[other])
        sys.stderr.write(failed.trace)
        return ChildError(
            "raised",
            f"rank {rank} of {self._job.world_size} failed: {failed.kind}: {failed.message}",
            message=failed.message,
            log=failed.trace,
        )

    def _describe_end(self, rank: int) -> ChildError:
        process = self._processes[rank]
        process.join()
        code = process.exitcode or 0
        how = f"exited with code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"
        hint = ", as a system does that runs out of memory" if code == -signal.SIGKILL else ""
        text = f"rank {rank} of {self._job.world_size} {how}{hint}: the others were ended too"
        return ChildError("crashed", text, status=code)


def _signal_name(number: int) -> str:
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


@contextmanager
def open_ranks(job: Job, verify: bool | Verification = True) -> Generator[RankStream]:
    """The text of a job by ranks that live as long as the block, however it ends.

    Iterating over it raises what a rank refuses, as if this process had, and ChildError for a rank
    that fails otherwise or is ended from outside.

    Args:
        job: what they do.
        verify: check every file against the checkpoint's hashes, in this process; False skips
            that, and a Verification is one that was begun before.
    """
    processes, connections = list[SpawnProcess](), list[Connection]()
    with TemporaryDirectory(prefix="tercet-ranks-") as folder:
        try:
            with _interrupts_blocked():
                for rank in range(job.world_size):
                    process, connection = _start(rank, job, Path(folder) / "store")
                    processes.append(process)
                    connections.append(connection)
            yield RankStream(job, verify, processes, connections)
        finally:
            # nothing that they hold outlives them, and a rank may wait for one that is gone
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _start(rank: int, job: Job, store: Path) -> tuple[SpawnProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(rank, job, store, there), daemon=True)
    process.start()
    # the end of the process is then the end of the pipe
    there.close()
    return process, here


def _run(rank: int, job: Job, store: Path, connection: Connection) -> None:
    # not above: this process needs no torch
    from tercet.runtime.tensor_parallel.rank_process import run_rank

    run_rank(rank, job, store, connection)


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Processes started in the block never see a Ctrl-C: the one that started them ends them."""
    # multiprocessing's own process: its start, which comes before any other, unblocks the signal
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
