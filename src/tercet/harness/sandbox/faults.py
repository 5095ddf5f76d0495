"""Faults: which check a call that failed is a finding of, and what to say of it."""

import re

from tercet.child_process import ChildError
from tercet.harness.finding import Finding
from tercet.kernel.interpreter.extents import OutOfBoundsError

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
    """What it said, on one line."""
    return " ".join(str(error).split())[:600]


def fault_finding(error: ChildError, implementation: str, case: str) -> Finding:
    """The finding of a call that failed."""
    return Finding(
        implementation=implementation,
        case=case,
        check=fault_kind(error),
        passed=False,
        message=fault_message(error),
    )
