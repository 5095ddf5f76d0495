"""Pace: how far a long job is and how long it still takes, in lines, where no terminal shows a bar.

A log of a job that says nothing for an hour looks like one that hangs.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread

from tercet.cli.show import bar, is_terminal, say

EVERY_S = 30.0


class Pace:
    """The progress of a job of units, the first of which (embeddings) is unlike the others.

    Args:
        clock: seconds, of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._done, self._total, self._name = 0, 0, "reading"
        self._first_s = self._unit_s = self._start

    def begin(self, done: int, total: int, name: str) -> None:
        """Notes that a unit begins, after `done` of `total`."""
        self._unit_s = self._clock()
        if done <= 1:
            self._first_s = self._unit_s
        self._done, self._total, self._name = done, total, name

    def left_s(self) -> float | None:
        """Seconds left, as the units so far went; None before one but the first is measured."""
        measured = self._done - 1
        if measured < 1:
            return None
        each = (self._unit_s - self._first_s) / measured
        return max(each * (self._total - self._done) - (self._clock() - self._unit_s), 0.0)

    def line(self) -> str:
        """One line: what is being done, for how long, and how long it still takes."""
        gone = duration(self._clock() - self._start)
        if not self._total:
            return f"{self._name}, {gone} gone"
        left = self.left_s()
        rest = "time left is not known yet"
        if left is not None:
            rest = f"about {duration(left)} left"
        return f"{self._done} of {self._total} done, at {self._name}, {gone} gone, {rest}"


def duration(seconds: float) -> str:
    """Seconds as "45 s", "3 min 20 s" or "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def say_pace(quiet: bool = False) -> Generator[Pace]:
    """A Pace whose line is printed every 30 s on standard error, unless that is a terminal."""
    pace, ended = Pace(), Event()

    def tell() -> None:
        while not ended.wait(EVERY_S):
            say(pace.line())

    teller = Thread(target=tell, daemon=True)
    if not quiet and not is_terminal():
        teller.start()
    try:
        yield pace
    finally:
        ended.set()
        if teller.is_alive():
            teller.join()


@contextmanager
def follow(quiet: bool, first: str = "reading") -> Generator[Callable[[int, int, str], None]]:
    """Shows a long job: a bar in a terminal, a line every 30 s elsewhere, nothing if `quiet`.

    Args:
        quiet: show nothing.
        first: what is done before the first unit.

    Yields:
        A function to call before each unit with (finished units, total units, name of the unit).
    """
    with bar(quiet) as progress, say_pace(quiet) as pace:
        task = progress.add_task(first, total=None)

        def tell(done: int, total: int, name: str) -> None:
            progress.update(task, total=total, completed=done, description=name)
            pace.begin(done, total, name)

        yield tell
