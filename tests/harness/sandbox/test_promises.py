"""What a fake promises: worked out once for arguments that it cannot tell apart, no others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.harness.sandbox.promises import broken_promises
from tercet.kernel.register import define

seen = list[tuple[Any, ...]]()


def run(x: Tensor, scale: float, sizes: list[int], y: Tensor | None) -> tuple[Tensor, Tensor]:
    del scale, y
    return x.clone(), x.new_zeros(sizes)


def fake(x: Tensor, scale: float, sizes: list[int], y: Tensor | None) -> tuple[Tensor, Tensor]:
    seen.append((x.stride(), x.storage_offset(), scale, y is None))
    return x.new_empty(x.shape), x.new_empty(sizes, dtype=torch.float64 if y is None else y.dtype)


OP = define(
    "promises_of_a_test",
    "(Tensor x, float scale, SymInt[] sizes, Tensor? y) -> (Tensor, Tensor)",
    run=run,
    fake=fake,
)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def test_other_values_promise_the_same() -> None:
    right = torch.empty(3, 4), torch.empty(2, dtype=torch.float64)
    for _ in range(3):
        assert broken_promises(OP, (torch.randn(3, 4), 0.25, [2], None), {}, right) == []
    assert len(seen) == 1


def test_what_a_fake_can_see_is_told_apart() -> None:
    x = torch.empty(6, 5)
    arguments: list[tuple[Any, ...]] = [
        (x, 1.0, [2], None),
        (x[:, :4], 1.0, [2], None),
        (x.t(), 1.0, [2], None),
        (x[1:], 1.0, [2], None),
        (x[:5], 1.0, [2], None),
        (x, 2.0, [2], None),
        (x, 1.0, [2, 1], None),
        (x, 1.0, [2], x),
        (x, 1.0, [2], x.half()),
        (x.expand(2, 6, 5), 1.0, [2], None),
        (x[:0], 1.0, [2], None),
    ]
    for each in arguments:
        broken_promises(OP, each, {}, fake(*each))
    given = seen[::2]
    # the fake saw each as it is, strides and offset too
    assert given == seen[1::2]
    assert len(given) == len(arguments)


@pytest.mark.parametrize(
    ("results", "wrong"),
    [
        ((torch.empty(3, 4), torch.empty(2)), "torch.float32 [2], its fake promises torch.float64"),
        ((torch.empty(4, 3).t(), torch.empty(2).double()), "strides [1, 3] of [3, 4]"),
        ((torch.empty(3, 5), torch.empty(2).double()), "[3, 5], its fake promises"),
    ],
)
def test_a_broken_promise_is_named_each_time(results: tuple[Tensor, ...], wrong: str) -> None:
    for _ in range(2):
        (found,) = broken_promises(OP, (torch.empty(3, 4), 0.5, [2], None), {}, results)
        assert wrong in found


IN_PLACE = define(
    "promises_of_a_test_",
    "(Tensor(a!) x) -> ()",
    run=lambda x: x.zero_() and None,
    fake=lambda x: None,
)


def test_what_only_writes_in_place_returns_nothing() -> None:
    assert broken_promises(IN_PLACE, (torch.randn(3),), {}, None) == []


def test_memory_of_an_argument_is_no_result() -> None:
    """Whichever argument, and whichever part of it; nothing empty lies anywhere."""
    x, y = torch.randn(6, 4), torch.empty(8, dtype=torch.float64)
    second = torch.empty(2, dtype=torch.float64)
    given = x[1:4], 0.5, [2], y
    for first, other, wrong in (
        (torch.empty(3, 4), second, []),
        (x[1:4], second, ["0"]),
        (x[:3], second, ["0"]),
        (torch.empty(3, 4), y[6:], ["1"]),
        (x[1:4], y[:2], ["0", "1"]),
    ):
        found = broken_promises(OP, given, {}, (first, other))
        assert found == [f"{OP} returned memory of an argument as result {at}" for at in wrong]
    empty = x[:0], 0.5, [0], y[:0]
    assert broken_promises(OP, empty, {}, (x[:0], y[:0])) == []


def test_memory_of_another_result_is_no_result() -> None:
    """Nor are elements between those of another, as of the two halves of one tensor's rows."""
    both, given = torch.empty(3, 8), (torch.empty(3, 4), 0.5, [3, 4], torch.empty(0))
    apart = torch.empty(3, 4)
    message = f"{OP} returned memory of another result as result 1"
    assert broken_promises(OP, given, {}, (apart, torch.empty(3, 4))) == []
    assert broken_promises(OP, given, {}, (apart, apart)) == [message]
    assert message in broken_promises(OP, given, {}, (both[:, :4], both[:, 4:]))
