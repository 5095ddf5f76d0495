"""Order: the unit tests that a mistake breaks first run first, the long ones evenly over workers.

`--dist worksteal` cuts the tests into as many blocks of equal count as there are workers; an idle
worker later takes from the end of another's block. So each block begins with its share of the
first and of the long tests.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# folders of tests
FIRST = ("formats", "records", "kernel")
# each test of these is long, and shares nothing with the next
_APART = ("test_every_op_compiles.py", "test_every_op.py")
# a file from here on is placed by its seconds, others where there is room
_LONG_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Timed(Generic[T]):
    """One test.

    Attributes:
        item: what is put in order.
        file: from the root.
        seconds: as recorded.
    """

    item: T
    file: str
    seconds: float


@dataclass
class _Unit(Generic[T]):
    """Tests that stay together, because they share fixtures."""

    first: bool
    tests: list[Timed[T]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(test.seconds for test in self.tests)


def spread(tests: Iterable[Timed[T]], workers: int, *, recorded: bool = True) -> list[T]:
    """The items, block after block; in their own order within a file.

    Without `recorded` files too stay in the order in which they come.
    """
    units = _gather(tests)
    if recorded:
        units.sort(key=lambda unit: (not unit.first, -unit.seconds))
    total = sum(len(unit.tests) for unit in units)
    room = [(total * (at + 1)) // workers - (total * at) // workers for at in range(workers)]
    blocks: list[list[Timed[T]]] = [[] for _ in range(workers)]
    taken = [0.0] * workers
    for unit in units:
        left: Sequence[Timed[T]] = unit.tests
        while left:
            open_ones = [at for at in range(workers) if len(blocks[at]) < room[at]]
            short = not recorded or unit.first or unit.seconds < _LONG_SECONDS
            at = min(
                open_ones,
                key=lambda at: len(blocks[at]) - room[at] if short else taken[at],
            )
            now, left = left[: room[at] - len(blocks[at])], left[room[at] - len(blocks[at]) :]
            blocks[at] += now
            taken[at] += sum(test.seconds for test in now)
    return [test.item for block in blocks for test in block]


def shuffle(tests: Sequence[Timed[T]], seed: int) -> list[Timed[T]]:
    """The files in another order, and the tests within each: what leans on another test falls."""
    drawn = random.Random(seed)
    rank = {file: drawn.random() for file in sorted({test.file for test in tests})}
    mixed = drawn.sample(list(tests), len(tests))
    return sorted(mixed, key=lambda test: rank[test.file])


def _gather(tests: Iterable[Timed[T]]) -> list[_Unit[T]]:
    found: dict[object, _Unit[T]] = {}
    for number, test in enumerate(tests):
        key = number if test.file.endswith(_APART) else test.file
        found.setdefault(key, _Unit(test.file.split("/")[1] in FIRST)).tests.append(test)
    return list(found.values())
