"""The order of the whole suite."""

import random
from itertools import pairwise

import pytest
from quick.order import Timed, shuffle, spread


def test_every_worker_begins_with_units_then_its_share_of_the_long_ones() -> None:
    tests = [
        *(Timed(item=f"slow{n}", file="tests/a/test_slow.py", seconds=4.0) for n in range(3)),
        *(Timed(item=f"op{n}", file="tests/ops/test_every_op.py", seconds=6.0) for n in range(4)),
        *(Timed(item=f"any{n}", file="tests/a/test_any.py", seconds=0.1) for n in range(9)),
        *(Timed(item=f"unit{n}", file=f"tests/formats/test_{n}.py", seconds=0.1) for n in range(4)),
    ]
    ordered = spread(tests, 2)
    assert sorted(ordered) == sorted(test.item for test in tests)
    assert ordered[:7] == ["unit0", "unit2", "slow0", "slow1", "slow2", "op2", "any5"]
    assert ordered[10:15] == ["unit1", "unit3", "op0", "op1", "op3"]
    assert spread(tests, 1)[:4] == ["unit0", "unit1", "unit2", "unit3"]


def test_a_seed_draws_an_order_of_files_and_of_their_tests() -> None:
    tests = [
        Timed(item=(file, n), file=f"tests/x/test_{file}.py", seconds=1.0)
        for file in range(8)
        for n in range(8)
    ]
    orders = [spread(shuffle(tests, seed), 1, recorded=False) for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    for order in orders:
        assert sorted(order) == [test.item for test in tests]
        assert sum(a[0] != b[0] for a, b in pairwise(order)) == 7
        assert [file for file, n in order if n == 0] != sorted(range(8))
        assert order[:8] != sorted(order[:8])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_none_is_lost_and_files_stay_together(workers: int) -> None:
    drawn = random.Random(workers)
    tests = [
        Timed(item=(file, n), file=f"tests/x/test_{file}.py", seconds=drawn.expovariate(0.5))
        for file in range(20)
        for n in range(drawn.randrange(1, 30))
    ]
    ordered = spread(tests, workers)
    assert sorted(ordered) == sorted(test.item for test in tests)
    changes = sum(a[0] != b[0] for a, b in pairwise(ordered))
    assert changes < 20 + workers  # a block's end cuts a file at most
    assert spread([], workers) == []
