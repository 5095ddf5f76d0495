"""Faults: which check a call that failed is a finding of, and what to say of it."""

import re
from pathlib import Path

from tercet.child_process import ChildError
from tercet.harness.finding import Finding
from tercet.kernel.interpreter.extents import OutOfBoundsError

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PACKAGE = Path(__file__).parents[2]
_LIBRARY = Path(re.__file__).parent.parent
_CRASHED = "Fatal Python error"
# quoted once or twice by the errors that wrap it
_WRITES_BESIDE = re.compile(rf"{OutOfBoundsError.__name__}\(\W*writes")


def fault_kind(error: ChildError, otherwise: str = "forward") -> str:
    """Which check a call that failed is a finding of."""
    if "out of a candidate's reach" in str(error) or error.kind in ("crashed", "time"):
        return "isolation"
    if _WRITES_BESIDE.search(str(error)):
        return "guard"
    return "memory" if error.kind == "memory" else otherwise


def fault_message(error: ChildError) -> str:
    """What it said, on one line, and in which line of the author's files."""
    crashed = _CRASHED in error.log
    said = str(error)
    said = said.split(_CRASHED)[0] if crashed else said.removesuffix(error.log)
    said = " ".join(said.split())[:600]
    frames = _FRAME.findall(error.log)
    # where a process crashed, the innermost call is listed first
    for file, line in frames if crashed else reversed(frames):
        if _is_authors(file):
            return f"{said} ({file}, line {line})"
    return said


def _is_authors(file: str) -> bool:
    """Whether it is an op's or a candidate's, none of the harness or of a library."""
    path = Path(file)
    if path.is_relative_to(_PACKAGE):
        return path.is_relative_to(_PACKAGE / "ops")
    return (
        path.is_absolute()
        and not {"site-packages", "dist-packages"} & {*path.parts}
        and not path.is_relative_to(_LIBRARY)
    )


def fault_finding(error: ChildError, implementation: str, case: str) -> Finding:
    """The finding of a call that failed."""
    return Finding(
        implementation=implementation,
        case=case,
        check=fault_kind(error),
        passed=False,
        message=fault_message(error),
    )
