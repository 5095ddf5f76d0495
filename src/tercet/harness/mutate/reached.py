"""Reached: which lines of some files run in a block."""

import sys
import threading
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tercet.harness.mutate.mutant import Mutant

Lines = set[tuple[Path, int]]


@contextmanager
def reached_lines(files: Collection[Path]) -> Generator[Lines, None, None]:
    """Yields the lines of these files that the block runs, in this thread and those it starts."""
    names = {str(file): file for file in files}
    found: Lines = set()

    def in_file(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((names[frame.f_code.co_filename], frame.f_lineno))
        return in_file

    def in_any(frame: FrameType, _: str, __: Any) -> Any:
        return in_file if frame.f_code.co_filename in names else None

    before = sys.gettrace(), threading.gettrace()
    threading.settrace(in_any)
    sys.settrace(in_any)
    try:
        yield found
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])  # pyright: ignore[reportArgumentType]


def is_reached(mutant: Mutant, lines: Lines | None) -> bool:
    """Whether its line is among these; what runs at import does anyway, of C++ it is not known."""
    if lines is None or not mutant.function or mutant.file.suffix != ".py":
        return True
    return (mutant.file, mutant.line) in lines
