"""Intervals against their definitions: closed forms, likelihoods, and how often they hold."""

from math import log, sqrt
from statistics import NormalDist

import numpy as np
import pytest

from tercet.evaluate.intervals import (
    Pairs,
    bootstrap_bounds,
    mcnemar,
    tango_bounds,
    wilson,
)


def pairs(first_only: int, second_only: int, questions: int) -> Pairs:
    return Pairs(first_only=first_only, second_only=second_only, questions=questions)


def test_wilson_by_its_quadratic() -> None:
    """The bounds are the shares p at which |right / n - p| is z standard errors sqrt(p q / n)."""
    z = NormalDist().inv_cdf(0.975)
    for right, count in ((3, 20), (50, 100), (99, 100)):
        for bound in wilson(right, count, 0.95):
            error = sqrt(bound * (1 - bound) / count)
            assert abs(right / count - bound) == pytest.approx(z * error, rel=1e-9)
    assert wilson(0, 10, 0.95)[0] == pytest.approx(0)
    assert wilson(10, 10, 0.95)[1] == pytest.approx(1)


def test_mcnemar_is_an_exact_binomial_test() -> None:
    assert mcnemar(pairs(5, 0, 100)) == pytest.approx(2 / 2**5)
    assert mcnemar(pairs(1, 6, 9)) == pytest.approx(2 * (1 + 7) / 2**7)
    assert mcnemar(pairs(4, 4, 50)) == 1
    assert mcnemar(pairs(0, 0, 50)) == 1
    assert 0 < mcnemar(pairs(900, 700, 5000)) < 1e-5


@pytest.mark.parametrize("questions", [1, 10, 14_000])
def test_equal_answers_leave_a_bound_in_closed_form(questions: int) -> None:
    """Without pairs that differ, n d^2 = z^2 d (1 - d) at the bound d."""
    z = NormalDist().inv_cdf(0.975)
    bound = z * z / (questions + z * z)
    assert tango_bounds(pairs(0, 0, questions), 0.975) == pytest.approx((-bound, bound))


@pytest.mark.parametrize("table", [(9, 4, 60), (0, 3, 40), (7, 0, 25), (30, 30, 61)])
def test_tango_s_statistic_is_z_at_the_bounds(table: tuple[int, int, int]) -> None:
    """With the share that maximizes the likelihood under that drop, found on a grid."""
    b, c, n = table
    z = NormalDist().inv_cdf(0.95)
    for drop, sign in zip(tango_bounds(pairs(*table), 0.95), (1, -1), strict=True):
        grid = np.linspace(max(0.0, -drop) + 1e-9, (1 - drop) / 2 - 1e-9, 400_001)
        likelihood = c * np.log(grid) + b * np.log(grid + drop)
        likelihood += (n - b - c) * np.log(np.maximum(1 - 2 * grid - drop, 1e-300))
        second_only = grid[likelihood.argmax()]
        variance = n * (2 * second_only + drop * (1 - drop))
        assert (b - c - n * drop) / sqrt(variance) == pytest.approx(sign * z, abs=2e-3)


def test_bounds_hold_as_often_as_they_say(seed: int) -> None:
    """One-sided at 95 %, on few pairs that differ, where a Wald interval holds too seldom."""
    random = np.random.default_rng(seed)
    drop, held_low, held_high, rounds = 0.03, 0, 0, 2000
    for b, c, _ in random.multinomial(120, [0.05, 0.02, 0.93], size=rounds):
        low, high = tango_bounds(pairs(int(b), int(c), 120), 0.95)
        held_low += low <= drop
        held_high += high >= drop
    assert held_low / rounds == pytest.approx(0.95, abs=0.025)
    assert held_high / rounds == pytest.approx(0.95, abs=0.025)


def test_the_bootstrap_agrees_with_the_normal_bounds_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(0.2, 1.0, 400)
    low, high = bootstrap_bounds(values.tolist(), 0.975)
    half = 1.96 * values.std() / sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.01)
    assert high == pytest.approx(values.mean() + half, abs=0.01)
    assert bootstrap_bounds([log(2)] * 5, 0.975) == pytest.approx((log(2), log(2)))
