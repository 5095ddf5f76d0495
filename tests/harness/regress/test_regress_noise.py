"""The noise model on simulated clocks: drift, spikes, processes that differ; seeded."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tercet.errors import UnsupportedError
from tercet.harness.regress.compare import Rounds, compare_rounds, join_rounds
from tercet.harness.regress.noise import (
    Interval,
    Noise,
    between_intervals,
    between_rounds,
    noise_of,
)
from tercet.harness.regress.report import RegressReport
from tercet.harness.regress.revisions import Ask, Row, confirm, measure


def row(index: int) -> Row:
    return Row(
        op="op",
        workload=f"shape {index}",
        sizes={"M": index},
        dtype="bfloat16",
        options={},
        direction="forward",
    )


@dataclass
class Machine:
    """A machine whose clock drifts slowly and whose other users now and then take the core.

    Every process adds an offset of its own to every row: where its memory happens to lie.
    """

    seed: int
    slow: dict[str, float] = field(default_factory=dict[str, float])
    noise: float = 0.01
    offset: float = 0.003

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.drift = 1.0

    def process(self, revision: str, row: Row) -> Ask:
        factor = self.random.gauss(1.0, self.offset)
        if revision == "b":
            factor *= self.slow.get(row.workload, 1.0)

        def ask(samples: int) -> list[float]:
            return [1e-4 * factor * self._sample() for _ in range(samples)]

        return ask

    def _sample(self) -> float:
        self.drift *= 1 + self.random.gauss(0, 0.002)
        spike = self.random.uniform(1.05, 2.0) if self.random.random() < 0.1 else 1.0
        return self.drift * spike * (1 + abs(self.random.gauss(0, self.noise)))


def timed(machine: Machine, rows: Sequence[Row]) -> list[Rounds]:
    """Three passes of five rounds, each in new processes."""
    return [
        join_rounds(
            [
                measure(each, *(machine.process(name, each) for name in "aba"), rounds=5)
                for _ in range(3)
            ]
        )
        for each in rows
    ]


def run(machine: Machine, rows: Sequence[Row]) -> RegressReport:
    def report(some: Sequence[Row], noise: Noise | None) -> RegressReport:
        return compare_rounds(timed(machine, some), "simulated", "a", "b", noise)

    return confirm(rows, report)


ROWS = [row(index) for index in range(100)]


@pytest.mark.parametrize("offset", [0.003, 0.015])
def test_ten_runs_of_the_same_code_flag_nothing(offset: float) -> None:
    for seed in range(10):
        report = run(Machine(seed, offset=offset), ROWS)
        assert report.passed, [str(change) for change in report.of("regression")]
        assert not report.of("improvement")


def test_a_row_that_is_8_percent_slower_is_flagged_and_no_other() -> None:
    for seed in range(10):
        report = run(Machine(seed, slow={"shape 37": 1.08}), ROWS)
        (found,) = report.of("regression")
        assert "shape 37" in found.row
        assert found.ratio == pytest.approx(1.08, abs=0.02)
        assert not report.of("improvement")


def test_a_faster_row_is_an_improvement_and_no_regression() -> None:
    report = run(Machine(1, slow={"shape 2": 0.9}), ROWS)
    assert report.passed
    assert [change.row.split()[3] for change in report.of("improvement")] == ["2"]


def test_a_machine_that_is_too_noisy_says_so() -> None:
    report = run(Machine(4, offset=0.1), ROWS)
    assert report.passed
    assert "too noisy" in report.notes[0]
    assert run(Machine(4), ROWS).notes == ()


def test_a_difference_below_two_percent_is_never_flagged() -> None:
    machine = Machine(3, slow={each.workload: 1.015 for each in ROWS}, noise=0.0, offset=0.0)
    assert run(machine, ROWS).passed


def test_a_difference_that_does_not_repeat_is_none() -> None:
    """The first processes of revision B lay out their memory badly; new ones do not."""
    seen = list[int]()

    def report(some: Sequence[Row], noise: Noise | None) -> RegressReport:
        seen.append(len(some))
        slow = {"shape 5": 1.2} if len(seen) == 1 else {}
        machine = Machine(len(seen), slow)
        return compare_rounds(timed(machine, some), "simulated", "a", "b", noise)

    found = confirm(ROWS, report)
    assert seen == [100, 1]
    assert found.passed
    assert len(found.changes) == 100


def test_more_rows_ask_for_more_evidence() -> None:
    few, many = noise_of([], 1), noise_of([], 1000)
    assert few.z == pytest.approx(3.09, abs=0.01)
    assert many.z == pytest.approx(4.75, abs=0.01)


def test_rounds_cancel_drift() -> None:
    drift = [1.0, 1.3, 1.7, 2.1, 2.9, 4.0]
    difference = between_rounds(drift, [1.1 * each for each in drift])
    assert difference.ratio == pytest.approx(1.1)
    assert difference.half_width == pytest.approx(0, abs=1e-12)


def test_intervals_widen_the_limit() -> None:
    narrow = Interval(low=99.9, middle=100, high=100.1)
    wide = Interval(low=90, middle=110, high=120)
    noise = noise_of([], 1)
    certain, unsure = between_intervals(narrow, narrow), between_intervals(narrow, wide)
    assert noise.limit(certain) == pytest.approx(0.0198, abs=1e-4)
    assert noise.limit(unsure) > unsure.log_ratio > 0.09


def test_the_same_version_timed_twice_widens_the_limit() -> None:
    quiet = Interval(low=100, middle=100, high=100)
    off = Interval(low=107, middle=107, high=107)
    same = [between_intervals(quiet, quiet)] * 9 + [between_intervals(quiet, off)]
    assert noise_of(same, 10).limit(same[-1]) >= same[-1].log_ratio


def test_an_interval_that_is_none_is_refused() -> None:
    good = Interval(low=1, middle=1, high=1)
    with pytest.raises(UnsupportedError, match="must be positive"):
        between_intervals(good, Interval(low=2, middle=1, high=3))
