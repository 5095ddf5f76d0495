"""Statistics: a median with its 95 % confidence interval, and when enough was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

TARGET = 0.005
_TAIL = 40  # one in so many at either end
_LEAST = 6


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The median of `count` samples and the ends of its 95 % confidence interval."""

    median: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half of the interval, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def median_interval(samples: Sequence[float]) -> Interval:
    """The median, and the order statistics between which it lies with at least 95 %.

    No distribution is assumed: times have a long tail on one side. How many of n samples lie below
    the true median is binomial (n, 1/2). Under six samples the whole range has less than 95 %.

    Raises:
        ValueError: for no samples.
    """
    if not samples:
        raise ValueError("no samples: measure at least once")
    ordered, count = sorted(samples), len(samples)
    rank = _rank(count)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Interval(median=middle, low=ordered[rank], high=ordered[count - 1 - rank], count=count)


def is_settled(samples: Sequence[float], target: float = TARGET) -> bool:
    """Whether the interval's half-width is under `target` of the median."""
    return len(samples) >= _LEAST and median_interval(samples).half_width <= target


@cache
def _rank(count: int) -> int:
    """How many samples to leave out at each end."""
    below, rank, whole = 0, 0, 1 << count
    while rank < (count - 1) // 2:
        below += math.comb(count, rank)
        if _TAIL * below > whole:
            break
        rank += 1
    return max(rank - 1, 0)
