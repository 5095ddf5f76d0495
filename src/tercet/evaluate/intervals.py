"""Intervals and tests of answers that are right or wrong, alone and in pairs.

Pairs are counted in a table of four: both right, only the first (b), only the second (c), none.
The first model is the teacher where one is; the drop is (b - c) / n.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, inf, sqrt
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Two models' answers to the same n questions.

    Attributes:
        first_only: b, questions that only the first answers right.
        second_only: c, questions that only the second answers right.
        questions: n.
    """

    first_only: float
    second_only: float
    questions: int

    @property
    def drop(self) -> float:
        """Share of right answers of the first minus that of the second."""
        return (self.first_only - self.second_only) / self.questions

    def grown(self, questions: int) -> "Pairs":
        """The same shares of another number of questions."""
        factor = questions / self.questions
        return Pairs(
            first_only=self.first_only * factor,
            second_only=self.second_only * factor,
            questions=questions,
        )


def wilson(right: int, count: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share (J. Am. Stat. Assoc. 22, 1927), two-sided."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def mcnemar(pairs: Pairs) -> float:
    """Exact two-sided p-value of McNemar's test: that both models are equally often right alone.

    Given b + c pairs that differ, b is binomial with 1/2 (Psychometrika 12, 1947).
    """
    differing = round(pairs.first_only + pairs.second_only)
    fewer = round(min(pairs.first_only, pairs.second_only))
    tail = sum(comb(differing, k) for k in range(fewer + 1))
    # whole numbers: 2 ** differing passes what a float holds
    return min(2 * tail / 2**differing, 1.0)


def tango_bounds(pairs: Pairs, confidence: float) -> tuple[float, float]:
    """Lower and upper bound of the drop, each alone with this confidence.

    Tango's score interval for paired shares (Statistics in Medicine 17, 1998): the bounds are
    where its test statistic is -z and z. It holds with few pairs that differ, and with none:
    n equal answers leave (-z^2, z^2) / (n + z^2).
    """
    z = NormalDist().inv_cdf(confidence)
    lower = _solve(lambda drop: _statistic(pairs, drop) - z)
    upper = _solve(lambda drop: _statistic(pairs, drop) + z)
    return lower, upper


def _statistic(pairs: Pairs, drop: float) -> float:
    """Tango's statistic: how far b - c is from n times the drop, in standard errors under it."""
    b, c, n = pairs.first_only, pairs.second_only, pairs.questions
    # the share of second-only pairs that is likeliest under this drop: 2n q^2 + B q + C = 0
    linear = -b - c + (2 * n - b + c) * drop
    constant = -c * drop * (1 - drop)
    root = sqrt(max(linear * linear - 8 * n * constant, 0.0))
    second_only = max((root - linear) / (4 * n), 0.0, -drop)
    variance = n * (2 * second_only + drop * (1 - drop))
    distance = b - c - n * drop
    if variance <= 0:
        return inf if distance > 0 else -inf if distance < 0 else 0.0
    return distance / sqrt(variance)


def _solve(falling: Callable[[float], float]) -> float:
    """Where a falling function of [-1, 1] crosses 0."""
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def bootstrap_bounds(
    differences: list[float], confidence: float, seed: int = 0, rounds: int = 10_000
) -> tuple[float, float]:
    """Lower and upper bound of the mean difference, each alone with this confidence.

    Percentiles of the means of questions drawn with replacement, both models' answers together.
    """
    values = np.asarray(differences)
    generator = np.random.default_rng(seed)
    means = np.empty(rounds)
    for at in range(rounds):
        means[at] = values[generator.integers(0, len(values), len(values))].mean()
    low, high = np.quantile(means, [1 - confidence, confidence])
    return float(low), float(high)
