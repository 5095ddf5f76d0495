"""Mutant: a source file with one change."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: that is changed.
        line: where, from 1.
        function: that the change lies in; "" outside of functions.
        kind: what was done: "drop a mask", "change a comparison", ...
        before, after: the statement (in C++: the line).
        source: the whole file, changed.
        occurrence: which of the function's equal statements, from 1.
    """

    file: Path
    line: int
    function: str
    kind: str
    before: str
    after: str
    source: str
    occurrence: int = 1

    @property
    def key(self) -> str:
        """What it is known by, wherever its lines move to."""
        which = f" (occurrence {self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.file.name} {self.function}: {self.before} => {self.after}{which}"


def tell_apart(mutants: Iterable[Mutant]) -> list[Mutant]:
    """The same, with equal ones numbered in their order."""
    seen, found = Counter[str](), list[Mutant]()
    for mutant in mutants:
        seen[mutant.key] += 1
        found.append(replace(mutant, occurrence=seen[mutant.key]))
    return found
