"""Reuse: an accepted row is taken as it is where all that it was compiled from is unchanged.

A row's digest is a sha256 of that: the kernel's source and that of all it calls, types, constants,
options, target and the compiler's version. Compiling is a pure function of those, so compiling
again can only cost time; a few drawn rows pay it in every run, for who edits a baseline by hand.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from tercet.harness.cross_compile.report import CompileRow

Unit = TypeVar("Unit", bound=Hashable)

# compile every row, unchanged or not, and take no compiler's output from a cache either
ALL = 2**31


def reuse_or_compile(
    digests: Mapping[Unit, str | None],
    accepted: Iterable[CompileRow],
    recompile: int,
    compile_all: Callable[[Sequence[Unit]], Sequence[Sequence[CompileRow]]],
) -> tuple[dict[Unit, Sequence[CompileRow]], int]:
    """The rows of each unit of compilation, and how many of the units were not compiled.

    Args:
        digests: unit -> what it would be compiled from; None where that is not known.
        accepted: rows of a baseline.
        recompile: so many of the unchanged units are drawn and compiled all the same.
        compile_all: units -> the rows of each, to which their digests are added here.
    """
    known: dict[str, list[CompileRow]] = {}
    for row in accepted:
        if row.digest is not None:
            known.setdefault(row.digest, []).append(row)
    unchanged = [unit for unit, digest in digests.items() if digest in known]
    drawn = set(random.sample(unchanged, min(recompile, len(unchanged))))
    found: dict[Unit, Sequence[CompileRow]] = {
        unit: known[digest]
        for unit, digest in digests.items()
        if digest is not None and digest in known and unit not in drawn
    }
    left = [unit for unit in digests if unit not in found]
    reused = len(found)
    for unit, rows in zip(left, compile_all(left), strict=True):
        found[unit] = [row.model_copy(update={"digest": digests[unit]}) for row in rows]
    return found, reused
