"""Gates on simulated answers: planted drops are found, and equal models never fail."""

import numpy as np
import pytest

from tercet.evaluate.intervals import Pairs
from tercet.evaluate.tasks.gate import Decision, Verdict, decide, overall


def simulate(random: np.random.Generator, questions: int, drop: float) -> Pairs:
    """A teacher right on 70 %, and a model that differs on 12 % + drop of the questions."""
    gained, lost = 0.06, 0.06 + drop
    b, c, _ = random.multinomial(questions, [lost, gained, 1 - lost - gained])
    return Pairs(first_only=int(b), second_only=int(c), questions=questions)


def decided(pairs: Pairs, limit: float, tasks: int = 1) -> Decision:
    return decide("mmlu", "acc", pairs, limit=limit, confidence=0.95, tasks=tasks)


@pytest.mark.parametrize(
    ("drop", "limit", "expected"),
    [(0.06, 0.02, Verdict.EXCEEDED), (0.0, 0.03, Verdict.WITHIN), (0.01, 0.04, Verdict.WITHIN)],
)
def test_a_planted_drop_is_decided_right_in_19_of_20_seeds(
    drop: float, limit: float, expected: Verdict
) -> None:
    verdicts = [
        decided(simulate(np.random.default_rng(seed), 2000, drop), limit).verdict
        for seed in range(20)
    ]
    assert verdicts.count(expected) >= 19
    assert set(verdicts) <= {expected, Verdict.UNDECIDED}


def test_a_drop_at_the_limit_is_seldom_proven_either_way(seed: int) -> None:
    random = np.random.default_rng(seed)
    verdicts = [decided(simulate(random, 800, 0.03), 0.03).verdict for _ in range(400)]
    # each side errs in 1 of 20; the share in 400 draws spreads by 1.1 %
    assert verdicts.count(Verdict.EXCEEDED) / 400 < 0.09
    assert verdicts.count(Verdict.WITHIN) / 400 < 0.09
    assert verdicts.count(Verdict.UNDECIDED) > 330


@pytest.mark.parametrize("limit", [0.0, 0.001, 0.02])
@pytest.mark.parametrize("questions", [1, 4, 100, 14_000])
def test_equal_models_never_fail(questions: int, limit: float) -> None:
    found = decided(Pairs(first_only=0, second_only=0, questions=questions), limit)
    assert found.verdict is not Verdict.EXCEEDED
    # four equal answers prove nothing
    assert (found.verdict is Verdict.WITHIN) == (limit * questions > 2.6)


def test_a_gain_never_fails() -> None:
    found = decided(Pairs(first_only=3, second_only=40, questions=500), 0.0)
    assert found.verdict is Verdict.WITHIN


def test_more_tasks_need_more_proof_of_a_loss_only() -> None:
    pairs = Pairs(first_only=40, second_only=15, questions=500)
    one, many = decided(pairs, 0.02), decided(pairs, 0.02, tasks=10)
    assert one.verdict is Verdict.EXCEEDED
    assert many.verdict is Verdict.UNDECIDED
    assert many.low < one.low
    assert many.high == one.high


@pytest.mark.parametrize(("drop", "limit"), [(0.05, 0.02), (0.0, 0.03)])
def test_so_many_more_questions_decide_in_four_of_five(drop: float, limit: float) -> None:
    """From shares as they are, so that the number is of the power that it promises."""
    exact = Pairs(first_only=(0.06 + drop) * 100, second_only=6, questions=100)
    found = decided(exact, limit)
    assert found.verdict is Verdict.UNDECIDED
    assert found.more is not None
    random = np.random.default_rng(7)
    verdicts = [
        decided(simulate(random, 100 + found.more, drop), limit).verdict for _ in range(300)
    ]
    right = Verdict.EXCEEDED if drop > limit else Verdict.WITHIN
    assert 0.72 < verdicts.count(right) / 300 < 0.9


def test_no_number_decides_a_drop_that_is_the_limit() -> None:
    found = decided(Pairs(first_only=5, second_only=3, questions=100), 0.02)
    assert (found.verdict, found.more) == (Verdict.UNDECIDED, None)


def test_the_gate_is_as_its_worst_task() -> None:
    within = decided(Pairs(first_only=0, second_only=0, questions=1000), 0.02)
    open_ = decided(Pairs(first_only=5, second_only=3, questions=100), 0.02)
    failed = decided(Pairs(first_only=90, second_only=3, questions=1000), 0.02)
    assert overall([within, within]) is Verdict.WITHIN
    assert overall([within, open_]) is Verdict.UNDECIDED
    assert overall([within, open_, failed]) is Verdict.EXCEEDED
