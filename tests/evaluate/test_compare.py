"""Perplexity, divergence and agreement against values computed by hand."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from tercet.evaluate.compare import compare


def constant(scores: list[float]) -> object:
    """A model that gives the same scores at every position."""
    return lambda ids: torch.tensor(scores).expand(1, ids.shape[1], len(scores))


def windows(count: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("vocabulary", [2, 17, 1000])
def test_a_uniform_model_has_the_vocabulary_as_perplexity(vocabulary: int) -> None:
    # 300 positions take three chunks of rows
    found = compare(windows(2, 301, vocabulary), {"m": constant([0.5] * vocabulary)})["m"]
    assert found.perplexity == pytest.approx(vocabulary, rel=1e-5)
    assert found.scored_tokens == 600
    assert found.kl_nats is None
    assert found.top1_agreement is None
    assert set(found.metrics()) == {
        "perplexity", "perplexity_low", "perplexity_high", "scored_tokens"
    }  # fmt: skip


def test_by_hand() -> None:
    p, q = [0.5, 0.25, 0.25], [0.2, 0.6, 0.2]
    ids = torch.tensor([[2, 0, 1], [0, 0, 2]])
    found = compare(
        ids,
        {"student": constant([log(x) + 3 for x in q])},
        constant([log(x) for x in p]),
    )
    assert list(found) == ["teacher", "student"]
    student = found["student"]
    scored = (0, 1, 0, 2)
    assert student.perplexity == pytest.approx(exp(-sum(log(q[i]) for i in scored) / 4), rel=1e-5)
    assert found["teacher"].perplexity == pytest.approx(
        exp(-sum(log(p[i]) for i in scored) / 4), rel=1e-5
    )
    expected = sum(a * log(a / b) for a, b in zip(p, q, strict=True))
    assert student.kl_nats == pytest.approx(expected, rel=1e-5)
    assert student.top1_agreement == 0
    assert student.scored_tokens == 4


def test_intervals_are_of_windows_drawn_with_replacement() -> None:
    # of two windows a quarter of the draws has the first twice, a quarter the second
    certain = [0.9, 0.1]
    model, teacher = constant([log(x) for x in certain]), constant([0.0, 0.0])
    found = compare(torch.tensor([[0, 0, 0], [1, 1, 1]]), {"m": model}, teacher)["m"]
    assert found.intervals["perplexity"] == pytest.approx((1 / 0.9, 1 / 0.1), rel=1e-5)
    assert found.metrics()["perplexity_high"] == pytest.approx(10, rel=1e-5)
    low, high = found.intervals["kl_nats"]
    assert low == pytest.approx(high)
    assert low == pytest.approx(found.kl_nats)
    # losses 0, 1, .., 99 nats: the mean's standard error is sqrt(833.25 / 100)
    steps = torch.tensor([[0, step] for step in range(100)])
    table = -torch.arange(100.0)
    many = compare(steps, {"m": constant(table.tolist())})["m"]
    low, high = (log(one) - log(float(table.exp().sum())) for one in many.intervals["perplexity"])
    assert low == pytest.approx(49.5 - 1.96 * 8.3325**0.5, abs=0.4)
    assert high == pytest.approx(49.5 + 1.96 * 8.3325**0.5, abs=0.4)
    assert compare(steps[:1], {"m": model})["m"].intervals == {}


def test_equal_models_agree_entirely() -> None:
    table = torch.randn(30, 30, generator=torch.Generator().manual_seed(1))

    def model(ids: Tensor) -> Tensor:
        return table[ids]

    found = compare(windows(3, 140, 30), {"same": model}, model)
    assert found["same"].kl_nats == 0
    assert found["same"].top1_agreement == 1
    assert found["same"].perplexity == found["teacher"].perplexity
    assert found["teacher"].kl_nats == 0


def test_a_target_is_the_next_token() -> None:
    ids = torch.arange(10)[None]

    def foresees(given: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((given + 1) % 10, 10).float() * 50

    assert compare(ids, {"m": foresees})["m"].perplexity == pytest.approx(1, abs=1e-6)


def test_a_hopeless_model_is_infinite_not_an_error() -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    assert compare(ids, {"m": constant([-1e6, 0.0])})["m"].perplexity == float("inf")


def test_the_teacher_runs_once_a_window_and_progress_is_told() -> None:
    calls: list[int] = []

    def teacher(ids: Tensor) -> Tensor:
        calls.append(ids.shape[1])
        return torch.zeros(1, ids.shape[1], 5)

    told: list[tuple[int, int]] = []
    students = {"a": constant([0.0] * 5), "b": constant([1.0] * 5)}
    compare(windows(3, 6, 5), students, teacher, lambda *at: told.append(at))
    assert calls == [6, 6, 6]
    assert told == [(1, 3), (2, 3), (3, 3)]
