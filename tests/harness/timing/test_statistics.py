"""The median's confidence interval: exact on small cases, and covering as often as it says."""

import random

import pytest

from tercet.harness.timing.statistics import is_settled, median_interval


@pytest.mark.parametrize(
    ("count", "rank"),
    # ranks (from one) of the lower end in Conover's table for 95 %
    [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (100, 40), (2000, 956)],
)
def test_ends_are_the_order_statistics_of_the_sign_test(count: int, rank: int):
    interval = median_interval([float(value) for value in range(1, count + 1)])
    assert (interval.low, interval.high) == (rank, count + 1 - rank)
    assert interval.median == (count + 1) / 2
    assert interval.count == count


def test_interval_covers_the_true_median_of_a_skewed_law():
    generator = random.Random(0)
    runs, median = 2000, 0.6931471805599453
    hits = sum(
        interval.low <= median <= interval.high
        for interval in (
            median_interval([generator.expovariate(1.0) for _ in range(25)]) for _ in range(runs)
        )
    )
    assert 0.95 <= hits / runs <= 0.98


def test_order_of_samples_does_not_matter():
    assert median_interval([3, 1, 2, 9, 4, 5, 7]) == median_interval([9, 7, 5, 4, 3, 2, 1])


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_settled_needs_six_samples_and_a_narrow_interval():
    assert not is_settled([1.0] * 5)
    assert is_settled([1.0] * 6)
    assert not is_settled([1.0, 1.02] * 6)
    assert is_settled([1.0, 1.02] * 6, target=0.011)
