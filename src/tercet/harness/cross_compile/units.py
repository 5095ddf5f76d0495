"""Units: each compilation in a process of its own, since a compiler may abort on bad input."""

import os
import re
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tercet.harness.cross_compile.report import Resources

# ends a hang: a slow machine compiles as right
_SECONDS = 600.0
_POLL = 0.005
# their numbers, since compilers write to them without Python
_STDOUT, _STDERR = 1, 2
# what a compiler prints after, or in place of, the reason
_NOISE = re.compile(
    r"^(\s|$|\^|PLEASE|Stack dump|#\d|Aborted|Fatal Python|During handling|The above"
    r"|\d+ errors? detected in the compilation of)"
)


def compile_each(work: Sequence[Callable[[], Resources]], jobs: int) -> list[Resources | str]:
    """The resources from each piece of work, or why it has none, in the compiler's words.

    This process is forked for each, `jobs` at a time: it must run no threads.
    """
    results: list[Resources | str] = ["" for _ in work]
    with TemporaryDirectory() as folder:
        running: dict[int, tuple[Any, float]] = {}
        waiting = list(range(len(work)))
        while waiting or running:
            while waiting and len(running) < jobs:
                at = waiting.pop(0)
                process = get_context("fork").Process(
                    target=_one, args=(work[at], Path(folder) / str(at))
                )
                process.start()
                running[at] = (process, time.monotonic())
            time.sleep(_POLL)
            for at, (process, since) in list(running.items()):
                if process.is_alive() and time.monotonic() - since < _SECONDS:
                    continue
                process.kill()
                process.join()
                del running[at]
                results[at] = _result(Path(folder) / str(at), process.exitcode or 0)
    return results


def _one(work: Callable[[], Resources], path: Path) -> None:
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
    for stream in (_STDOUT, _STDERR):
        os.dup2(log, stream)
    path.with_suffix(".json").write_text(work().model_dump_json())


def _result(path: Path, exitcode: int) -> Resources | str:
    written = path.with_suffix(".json")
    if exitcode == 0 and written.exists():
        return Resources.model_validate_json(written.read_text())
    if exitcode == -9:
        return f"the compiler took over {_SECONDS:.0f} s"
    return reason(path.with_suffix(".log").read_text(errors="replace"), exitcode)


def reason(log: str, exitcode: int) -> str:
    """The line of a compiler's output that says why: the last one that is not noise."""
    lines = [line for line in log.splitlines() if not _NOISE.match(line)]
    errors = [line for line in lines if re.search(r"error|exception", line, re.IGNORECASE)]
    found = (errors or lines or ["no output"])[-1].strip()
    if errors and re.search(r"CompilationError: at \d+:\d+:$", found):
        # Triton's: the place, the source up to it, a caret, and only then the reason
        found = f"{found} {lines[-1].strip()}" if lines[-1] is not errors[-1] else found
    found = re.sub(r"^tercet\.errors\.\w+: |\S*/(?=[^/\s]+[:(]\d)", "", found)[:300]
    return found if exitcode > 0 else f"the compiler crashed (signal {-exitcode}): {found}"
