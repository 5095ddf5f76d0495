"""Where seeds come from: the system for a user, the test's name for a test."""

import random
import runpy

import pytest

from tercet.harness import seed as place
from tercet.harness.seed import draw_seed


def test_a_users_seeds_come_from_the_system() -> None:
    loaded = runpy.run_path(place.__file__)
    assert type(loaded["source"]) is random.SystemRandom
    assert len({loaded["draw_seed"]() for _ in range(20)}) == 20


def test_a_tests_seeds_follow_from_its_name(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--fresh"):
        assert type(place.source) is random.SystemRandom
        return
    own = random.Random(request.node.nodeid)
    # numpy's and torch's
    _ = own.getrandbits(32), own.getrandbits(63)
    assert [draw_seed(), draw_seed()] == [own.randrange(2**31), own.randrange(2**31)]
