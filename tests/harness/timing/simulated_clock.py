"""A clock for tests of what times: it goes on by what is said to have been done, not by itself.

A real one tells how busy the machine is as well; this one is busy by a seed.
"""

import random


class SimulatedClock:
    """Nanoseconds of a machine with noise, a scheduler that takes the core away, and drift.

    Args:
        seed: of all three.
        noise: standard deviation of what work takes too long, as a share of it.
        pause_us: how long the core is away, at most; once in fifty pieces of work.
        drift: standard deviation of a step of the machine's pace from one piece to the next.
    """

    def __init__(
        self, seed: int, *, noise: float = 0.02, pause_us: float = 5_000.0, drift: float = 0.001
    ) -> None:
        self._random = random.Random(seed)
        self._noise, self._pause_us, self._drift = noise, pause_us, drift
        self._pace, self._ns = 1.0, 0

    def work(self, us: float) -> None:
        """So many microseconds' work is done."""
        self._pace *= 1 + self._random.gauss(0.0, self._drift)
        took = us * self._pace * (1 + abs(self._random.gauss(0.0, self._noise)))
        if self._random.random() < 0.02:
            took += self._random.uniform(0.0, self._pause_us)
        self._ns += round(1e3 * took)

    def now_ns(self) -> int:
        """To be read in place of time.perf_counter_ns; reading takes 50 ns."""
        self._ns += 50
        return self._ns
