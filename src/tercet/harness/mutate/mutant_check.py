"""MutantCheck: one mutant under `check`, in a process of its own.

The processes are forked from a server that has imported everything and run nothing: one forked from
the caller would wait for ever for OpenMP threads, or a CUDA context, that only the caller has.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from tercet.child_process.child import resident_bytes
from tercet.harness.check.run import check
from tercet.harness.check.subject import FEW_DRAWN
from tercet.harness.mutate.mutant import Mutant
from tercet.harness.mutate.reached import Lines, reached_lines
from tercet.harness.mutate.sources import importers_of, modules_of, sources_of
from tercet.kernel.contract import Implementation, Op, Tolerance
from tercet.kernel.jit.cpp import INCLUDE, sources_from
from tercet.ops.discover import address_of, find

_NATIVE = (".cpp", ".hpp", ".h", ".cu", ".cuh")
_MOST_BYTES = 8 * 2**30
# of addresses: rows that lie far apart take many and no memory
_MOST_ADDRESSES = 2**40
_SERVER = multiprocessing.get_context("forkserver")
# torch's compiler takes a second to import, as often as there are mutants
_SERVER.set_forkserver_preload([check.__module__, find.__module__, __name__, "torch._dynamo"])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the check of a mutant ended.

    Attributes:
        by: the check that was red, or "raised", "crashed", "endless"; None: the mutant survived.
        message: of that check.
        seconds: of wall time.
        reached: the lines of the implementation's own Python that ran; of the sources as they are,
            on a CPU; else None.
    """

    by: str | None
    message: str
    seconds: float
    reached: Lines | None = None


class MutantCheck:
    """One mutant, or the sources as they are, being checked. `poll` until it gives a verdict."""

    def __init__(
        self,
        op: Op,
        implementation: Implementation,
        mutant: Mutant | None,
        device: str,
        seed: int,
        seconds: float,
    ) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self._here, there = _SERVER.Pipe(duplex=False)
        self._folder = tempfile.TemporaryDirectory(prefix="tercet-mutant-")
        self._process = _SERVER.Process(
            target=_child,
            args=(
                there,
                address_of(op),
                op.tolerances,
                implementation.name,
                mutant,
                device,
                seed,
                Path(self._folder.name),
            ),
            daemon=True,
        )
        self._process.start()
        there.close()

    @property
    def waited_for(self) -> Connection:
        """Becomes ready with the verdict, or when the process ends."""
        return self._here

    def poll(self) -> Verdict | None:
        """The verdict, as soon as there is one."""
        took = time.monotonic() - self._began
        if self._here.poll():
            try:
                by, message, reached = self._here.recv()
            except (EOFError, OSError):
                self._process.join()
                by, message, reached = "crashed", f"exit code {self._process.exitcode}", None
        elif took > self._seconds:
            by, message, reached = "endless", f"no verdict after {self._seconds:.0f} s", None
        elif resident_bytes(self._process.pid or 0) > _MOST_BYTES:
            by, message, reached = "crashed", f"took more than {_MOST_BYTES} bytes of memory", None
        else:
            return None
        self.close()
        return Verdict(by=by, message=message, seconds=took, reached=reached)

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.join()
        self._here.close()
        self._folder.cleanup()


def _child(
    pipe: Connection,
    name: str,
    tolerances: tuple[Tolerance, ...],
    implementation: str,
    mutant: Mutant | None,
    device: str,
    seed: int,
    folder: Path,
) -> None:
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if device == "cpu" and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    op = replace(find(name), tolerances=tolerances)
    reached: Lines | None = None
    with contextlib.ExitStack() as stack:
        try:
            if mutant is not None:
                _put(mutant, op.implementation(implementation), folder, stack)
            elif device == "cpu":
                files = sources_of(op.implementation(implementation))
                reached = stack.enter_context(reached_lines(files))
            report = check(
                op,
                implementation=implementation,
                device=device,
                seed=seed,
                isolated=False,
                integration=False,
                drawn=FEW_DRAWN,
                until_red=True,
            )
            fault = next(iter(report.faults), None)
            verdict = (fault.check, f"{fault.case}: {fault.message}") if fault else (None, "")
        except BaseException as error:  # noqa: BLE001 a mutant may raise anything
            verdict = ("raised", f"{type(error).__name__}: {error}"[:500])
    pipe.send((*verdict, reached))
    os._exit(0)


def _put(
    mutant: Mutant, implementation: Implementation, folder: Path, stack: contextlib.ExitStack
) -> None:
    """Imports, or builds, the mutant in place of its file."""
    if mutant.file.suffix in _NATIVE:
        for path in (each for kind in _NATIVE for each in INCLUDE.rglob(f"*{kind}")):
            copy = folder / path.relative_to(INCLUDE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        (folder / mutant.file.relative_to(INCLUDE)).write_text(mutant.source, encoding="utf-8")
        stack.enter_context(sources_from(folder))
        os.environ["TERCET_CACHE"] = str(folder / "cache")
        return
    modules = modules_of(implementation)
    names = importers_of(mutant.file, modules)
    # beside a link to all that the file may look for in its folder
    for beside in mutant.file.parent.iterdir():
        if beside.name != mutant.file.name:
            (folder / beside.name).symlink_to(beside)
    changed = folder / mutant.file.name
    changed.write_text(mutant.source, encoding="utf-8")
    for name in names:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Finder(names[0], changed))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module in another file."""

    def __init__(self, name: str, file: Path) -> None:
        self._name, self._file = name, file

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._file)
