"""Revisions: two git revisions timed in turn, so that both see the same drift of clocks and load.

Each revision is unpacked into a folder of its own and timed by a process of its own that stays
alive; the older one by two, which shows how far apart two processes of the same code lie. Where a
process happens to lay out its memory can cost a row several per cent for as long as it lives: so
there are several passes, each in new processes, and a row that looks slower is timed anew before it
is called a regression.
"""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from tercet.child_process import Child, ChildError
from tercet.errors import UnsupportedError
from tercet.harness.regress.compare import Rounds, compare_rounds, join_rounds
from tercet.harness.regress.noise import Noise
from tercet.harness.regress.report import Change, RegressReport
from tercet.harness.workloads.shapes import fit_memory, workloads_of
from tercet.kernel.contract import Op, Workload
from tercet.ops.discover import find
from tercet.records.record import Setting

WORKING_TREE = "."
_WORKER = Path(__file__).parent / "worker.py"
_SECONDS = 600.0
_SAMPLES = 5

Ask = Callable[[int], list[float]]


class Row(BaseModel):
    """What is timed: one call of an op, in one direction.

    Attributes:
        op: its name.
        workload, sizes, dtype, options: the call.
        direction: forward or backward.
        implementation: its name; None for the one that selection picks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    workload: str
    sizes: dict[str, int]
    dtype: str
    options: dict[str, Setting]
    direction: Literal["forward", "backward"]
    implementation: str | None = None

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        name = self.implementation or "chosen"
        return f"{name} {self.direction} {self.workload} {sizes} {self.dtype}"


def rows_of(op: Op, workloads: Iterable[Workload]) -> list[Row]:
    """Forward and, where the op is differentiable, backward of each call."""
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    return [
        Row(
            op=op.name,
            workload=workload.name,
            sizes=dict(workload.sizes),
            dtype=str(workload.dtype)[6:],
            options=dict(workload.options),
            direction=direction,
        )
        for workload in workloads
        for direction in (directions if op.differentiable else directions[:1])
    ]


def model_rows(
    ops: Sequence[str], models: Sequence[str], tensor_parallel: int, tokens: int, device: str
) -> list[Row]:
    """The rows of these ops in these models, cut so that three processes share the memory."""
    free = None
    if device == "cuda":
        free = int(0.9 * torch.cuda.mem_get_info()[0]) // 3
    found = list[Row]()
    for op in map(find, ops):
        for model in models:
            for workload in workloads_of(op, model, tensor_parallel, tokens):
                fitting = workload if free is None else fit_memory(op, workload, free)[0]
                found += rows_of(op, [fitting])
    return found


def compare_revisions(
    rows: Sequence[Row],
    revision_a: str,
    revision_b: str,
    *,
    repository: Path = Path(),
    device: str = "cpu",
    passes: int = 3,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> RegressReport:
    """Revision B against revision A on these rows.

    Args:
        rows: what to time; every op must be in both revisions.
        revision_a, revision_b: what git calls them; "." is the working tree as it is; an absolute
            path is a tree outside of git.
        repository: a folder in the git repository, whose package is in `src`.
        device: "cpu" or "cuda".
        passes: how often all rows are timed in new processes.
        rounds: how often each row is timed in each of them, in turn.
        progress: told of each pass.

    Raises:
        UnsupportedError: an unknown revision, no rows, or a row that fails in a revision.
    """
    if not rows:
        raise UnsupportedError("no rows to time: name an op that declares shapes, and a model")
    if passes < 1 or passes * rounds < 5:
        raise UnsupportedError(
            f"{passes} passes of {rounds} rounds: at least 5 in all, or one outlier decides"
        )
    names = (revision_a, revision_b)
    with unpack_revision(repository, revision_a) as a, unpack_revision(repository, revision_b) as b:

        def timed(some: Sequence[Row], noise: Noise | None) -> RegressReport:
            measured: list[list[Rounds]] = []
            for each in range(1, passes + 1):
                progress(f"pass {each} of {passes}: {len(some)} rows")
                with _workers((a, b, a), device) as workers:
                    measured.append(
                        [
                            measure(row, *(worker.of(row) for worker in workers), rounds=rounds)
                            for row in some
                        ]
                    )
            joined = [join_rounds(parts) for parts in zip(*measured, strict=True)]
            return compare_rounds(joined, _device_label(device), *names, noise)

        return confirm(rows, timed)


def confirm(
    rows: Sequence[Row], timed: Callable[[Sequence[Row], Noise | None], RegressReport]
) -> RegressReport:
    """The report on all rows; those that differ are timed again, and must differ again."""
    report = timed(rows, None)
    found = [i for i, change in enumerate(report.changes) if change.verdict != "same"]
    if not found:
        return report
    again = timed([rows[i] for i in found], report.noise["rounds"])
    changes = list(report.changes)
    for i, second in zip(found, again.changes, strict=True):
        changes[i] = _both(changes[i], second)
    return report.model_copy(update={"changes": tuple(changes)})


def measure(row: Row, a: Ask, b: Ask, again: Ask, /, rounds: int) -> Rounds:
    """The row's times, the processes asked in turn; the order rotates, as the first finds a GPU
    that has cooled down.

    The least of a few samples stands for a round: load can only add to a time.
    """
    asks, times = (a, b, again), tuple(list[float]() for _ in range(3))
    for ask in asks:
        ask(1)
    for i in range(rounds):
        for place in ((i + step) % 3 for step in range(3)):
            times[place].append(min(asks[place](_SAMPLES)))
    return Rounds(op=row.op, row=str(row), before=times[0], after=times[1], again=times[2])


def _both(first: Change, second: Change) -> Change:
    """A difference is one only where both runs say so; the smaller of the two is reported."""
    if second.verdict != first.verdict:
        return second.model_copy(update={"verdict": "same"})
    return min(first, second, key=lambda change: abs((change.ratio or 1.0) - 1))


class Worker(Child):
    """A process that times rows of one revision."""

    def __init__(self, tree: Path, device: str) -> None:
        """Starts it; `greet` waits until it has started."""
        self._tree, self._device = tree, device
        # what was on the path already stays behind the tree: packages may be installed there
        before = os.environ.get("PYTHONPATH")
        path = str(tree / "src") + (os.pathsep + before if before else "")
        super().__init__(seconds=_SECONDS, environment={**os.environ, "PYTHONPATH": path})

    def greet(self) -> None:
        """Waits for its first answer. UnsupportedError where it imported another tree's package."""
        answer = self._ask("start", "its start", device=self._device)
        package = Path(answer).resolve()
        if not package.is_relative_to(self._tree.resolve()):
            self.close()
            raise UnsupportedError(
                f"the worker imported tercet from {package}, not from {self._tree}: an installed "
                "package shadows PYTHONPATH; install Tercet with `pip install -e .`"
            )

    def of(self, row: Row) -> Ask:
        """Prepares the row, and gives the function that times so many samples of it."""
        self._ask("prepare", str(row), row=row.model_dump(mode="json"))
        return lambda samples: self._ask("time_samples", str(row), samples=samples)

    def _ask(self, function: str, at: str, /, **arguments: Any) -> Any:
        try:
            return self.request(f"{_WORKER}:{function}", arguments)
        except ChildError as error:
            self.close()
            raise UnsupportedError(
                f"the process that times {self._tree.name} ended at {at}; compare revisions that "
                f"both have this op and shape; it said: {error}"
            ) from error


@contextmanager
def _workers(trees: Sequence[Path], device: str) -> Generator[list[Worker], None, None]:
    with ExitStack() as stack:
        found = list[Worker]()
        for tree in trees:
            worker = Worker(tree, device)
            stack.callback(worker.close)
            found.append(worker)
        for worker in found:
            worker.greet()
        yield found


@contextmanager
def unpack_revision(repository: Path, revision: str) -> Generator[Path, None, None]:
    """A folder with the revision's `src`. `git archive` leaves no trace in the repository."""
    if Path(revision).is_absolute():
        if not (Path(revision) / "src" / "tercet").is_dir():
            raise UnsupportedError(f"{revision} is no tree of Tercet: it has no src/tercet")
        yield Path(revision)
        return
    root = Path(_git(repository, "rev-parse", "--show-toplevel").decode().strip())
    if revision == WORKING_TREE:
        yield root
        return
    commit = _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    with TemporaryDirectory(prefix=f"tercet-{commit[:12]}-") as name:
        archive = _git(root, "archive", "--format=tar", commit, "src")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # Python has filters since 3.11.4, and warns from 3.12 on where none is chosen
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(name)
        yield Path(name)


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True)
    except OSError as error:
        raise UnsupportedError(f"git did not run: {error.strerror}; install git") from error
    if done.returncode:
        raise UnsupportedError(
            f"git {' '.join(arguments)} in {folder}: {done.stderr.decode().strip()}"
        )
    return done.stdout


def _device_label(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
