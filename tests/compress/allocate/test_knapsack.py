"""The knapsack's solution is the best there is: every choice is tried."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tercet.compress.allocate.knapsack import solve_knapsack

CHOICE = st.tuples(st.floats(-0.5, 4, width=32), st.integers(0, 10**7))
GROUPS = st.lists(st.lists(CHOICE, min_size=1, max_size=4), min_size=1, max_size=6)


@given(GROUPS, st.floats(0, 1.1))
def test_as_good_as_the_best_of_all_choices(
    groups: list[list[tuple[float, int]]], share: float
) -> None:
    costs = [[cost for cost, _ in its] for its in groups]
    sizes = [[size for _, size in its] for its in groups]
    low, high = sum(map(min, sizes)), sum(map(max, sizes))
    limit = int(low + share * (high - low))
    fitting = [
        sum(cost for cost, _ in its)
        for its in product(*groups)
        if sum(size for _, size in its) <= limit
    ]
    picks = solve_knapsack(costs, sizes, limit)
    assert picks is not None
    assert sum(its[pick] for its, pick in zip(sizes, picks, strict=True)) <= limit
    found = sum(its[pick] for its, pick in zip(costs, picks, strict=True))
    assert abs(found - min(fitting)) <= 1e-8


def test_costs_of_very_different_size_count() -> None:
    costs = [[5.0, 1e-7], [5.0, 2e-7], [8.0, 0.0]]
    assert solve_knapsack(costs, [[1, 2], [1, 2], [1, 9]], 13) == [1, 1, 1]
    assert solve_knapsack(costs, [[1, 2], [1, 2], [1, 9]], 12) in ([0, 1, 1], [1, 0, 1])


def test_nothing_fits() -> None:
    assert solve_knapsack([[0.0], [0.0, 1.0]], [[5], [4, 3]], 7) is None
    assert solve_knapsack([[0.0], [0.0, 1.0]], [[5], [4, 3]], 8) == [0, 1]


def test_sizes_that_differ_by_more_than_a_solvers_tolerance() -> None:
    costs, sizes = [[1.0, 0.0], [1.0, 0.0]], [[10**9, 2 * 10**9], [100, 200]]
    assert solve_knapsack(costs, sizes, 10**9 + 100) == [0, 0]
