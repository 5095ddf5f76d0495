"""Which cases also run in other layouts: from the whole range, or without the longest ones."""

import pytest
from torch import Tensor

from tercet.harness.check.plain_cases import spread_plain
from tercet.kernel.contract import Case
from tercet.ops.discover import find


def longest(case: Case) -> int:
    tensors = [value for value in case.make(0).values() if isinstance(value, Tensor)]
    return max(size for tensor in tensors for size in tensor.shape)


@pytest.mark.parametrize("name", ["linear_cross_entropy", "rms_norm", "paged_attention"])
def test_interpreted_kernels_are_spared_the_longest(name: str) -> None:
    cases = find(name).cases
    every = spread_plain(cases, len(cases), short=False)
    spared = spread_plain(cases, len(cases), short=True)
    assert set(spared) < set(every)
    assert len(spared) > len(every) / 2
    most = max(map(longest, spared))
    assert all(longest(case) > most for case in every if case not in spared)
    some = spread_plain(cases, 8, short=True)
    assert len(some) == 8
    assert set(some) <= set(spared)
