"""Tune: finds the fastest right configuration, refuses wrong ones, writes the table."""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from harness.timing.simulated_clock import SimulatedClock

from tercet.errors import UnsupportedError
from tercet.harness.timing import clock
from tercet.harness.timing.statistics import Interval
from tercet.harness.tune import course as tune_course
from tercet.harness.tune.run import TunedShape, tune, write_table
from tercet.harness.tune.search import search
from tercet.kernel import tuned
from tercet.kernel.contract import Implementation, Op, Requirement, Tolerance, Workload
from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.op import OP
from tercet.records import Outcome

WORKLOAD = Workload(name="w", sizes={"M": 8, "N": 16}, dtype=torch.float32)
DEFAULT = {"A": 4, "B": 2}


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    """The clock that times and budgets are read from, on a machine that is busy by a seed."""
    found = SimulatedClock(getattr(request, "param", 0))
    monkeypatch.setattr(clock, "_now", found.now_ns)
    return found


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: SimulatedClock) -> Op:
    def forward(*arguments: Any) -> Any:
        """Fastest at A=2, B=1; wrong at A=1; does not compile at B=3."""
        options = tuned.configuration("rms_norm", "made_up", {"M": 8, "N": 16}, DEFAULT)
        if options["B"] == 3:
            raise RuntimeError("out of resource: shared memory")
        machine.work(300.0 * (abs(options["A"] - 2) + options["B"]))
        y, total, rstd = torch_path.forward(*arguments)
        return (y * 2 if options["A"] == 1 else y), total, rstd

    module = ModuleType("made_up_kernel")
    module.forward, module.gradient = forward, torch_path.gradient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_kernel", module)
    monkeypatch.setattr(tuned, "table_path", lambda op, device: tmp_path / f"{op}-{device}.json")
    monkeypatch.setattr(tune_course, "cache_bytes", lambda device: 2 << 10)
    monkeypatch.setattr(tune_course, "_FINAL_SECONDS", 0.5)
    made_up = Implementation(
        name="made_up",
        requirement=Requirement(dtypes=(torch.float32,)),
        module="made_up_kernel",
        language="torch",
        space={"A": (1, 2, 4), "B": (1, 2, 3)},
    )
    bare = replace(made_up, name="bare", space={})
    return replace(OP, implementations=(made_up, bare))


@pytest.mark.parametrize("machine", range(5), ids=lambda seed: f"seed {seed}", indirect=True)
def test_the_fastest_right_configuration_is_written_and_used(op: Op, tmp_path: Path):
    report = tune(op, "made_up", [WORKLOAD], device="cpu", seconds=60, seed=1)
    (shape,) = report.shapes
    assert shape.better
    assert shape.configuration == {"A": 2, "B": 1}
    assert shape.time_us is not None
    assert shape.default_us is not None
    assert shape.time_us == pytest.approx(300.0, rel=0.1)
    assert shape.default_us == pytest.approx(1200.0, rel=0.1)  # of |4 - 2| + 2
    outcomes = {tuple(t.configuration.values()): t.outcome for t in shape.trials}
    assert len(outcomes) == 10  # all nine and the default
    assert all(
        (outcome is Outcome.FAILED) == (key[1:] == (3,)) for key, outcome in outcomes.items()
    )
    assert {key for key, o in outcomes.items() if o is Outcome.WRONG} == {(1, 1), (1, 2)}
    reasons = [t.reason for t in shape.trials if t.outcome is Outcome.FAILED]
    assert all("out of resource" in str(reason) for reason in reasons)

    path = tmp_path / "rms_norm-cpu.json"
    assert report.path == str(path)
    assert json.loads(path.read_text()) == [
        {
            "implementation": "made_up",
            "direction": "forward",
            "sizes": {"M": 8, "N": 16},
            "configuration": {"A": 2, "B": 1},
        }
    ]
    chosen = tuned.configuration("rms_norm", "made_up", {"M": 9, "N": 16}, DEFAULT)
    tuned.forget()
    assert chosen == {"A": 2, "B": 1}


@pytest.mark.parametrize(("high", "better"), [(4.0, True), (5.5, False)])
def test_only_what_is_faster_beyond_noise_is_written(
    high: float, better: bool, op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    default = Interval(median=6.0, low=5.0, high=7.0, count=9)
    challenger = Interval(median=3.5, low=3.0, high=high, count=9)
    monkeypatch.setattr(tune_course.Course, "duel", lambda self, best: (default, challenger))
    report = tune(op, "made_up", [WORKLOAD], device="cpu", seconds=0, seed=1)
    assert [shape.better for shape in report.shapes] == [better]
    assert (report.shapes[0].time_us, report.shapes[0].default_us) == (3.5, 6.0)
    assert len(list(tmp_path.iterdir())) == better


def test_no_write_leaves_no_table(op: Op, tmp_path: Path):
    report = tune(op, "made_up", [WORKLOAD], device="cpu", seconds=0, seed=1, write=False)
    assert report.path is None
    assert not list(tmp_path.iterdir())


def test_an_implementation_without_a_space_is_refused(op: Op):
    with pytest.raises(UnsupportedError, match="declares nothing to tune"):
        tune(op, "bare", [WORKLOAD], device="cpu")


def _shape(m: int, better: bool, configuration: dict[str, int], **more: Any) -> TunedShape:
    asked = more.pop("asked", ({"M": m},))
    return TunedShape(
        direction=more.pop("direction", "forward"), workload="w", sizes={"M": m}, dtype="float32",
        asked=asked, configuration=configuration, time_us=1.0, default_us=2.0, better=better,
        trials=(),
    )  # fmt: skip


def _table(path: Path) -> list[tuple[str, str, int, dict[str, int]]]:
    return [
        (e["implementation"], e["direction"], e["sizes"]["M"], e["configuration"])
        for e in json.loads(path.read_text())
    ]


def test_entries_are_sorted_and_replaced(tmp_path: Path):
    path = tmp_path / "tuned" / "gpu.json"
    assert write_table(path, "b", [_shape(9, True, {"A": 1}), _shape(3, True, {"A": 2})])
    assert write_table(path, "a", [_shape(5, True, {"A": 3}, direction="backward")])
    assert write_table(path, "b", [_shape(9, True, {"A": 4})])
    assert _table(path) == [
        ("a", "backward", 5, {"A": 3}),
        ("b", "forward", 3, {"A": 2}),
        ("b", "forward", 9, {"A": 4}),
    ]
    assert not write_table(path, "b", [_shape(9, True, {"A": 4})])


def test_a_default_that_was_not_beaten_is_kept_from_its_neighbours_entry(tmp_path: Path):
    path = tmp_path / "gpu.json"
    assert not write_table(path, "b", [_shape(9, False, {"A": 1})])
    assert not path.exists()
    write_table(path, "b", [_shape(9, False, {"A": 1}), _shape(3, True, {"A": 2})])
    assert _table(path) == [("b", "forward", 3, {"A": 2}), ("b", "forward", 9, {})]
    write_table(path, "b", [_shape(3, False, {"A": 2})])
    assert _table(path) == [("b", "forward", 9, {})]


def test_entries_are_for_the_sizes_at_which_the_kernel_asks(
    op: Op, machine: SimulatedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def one_long_row(*arguments: Any) -> Any:
        machine.work(300.0)
        tuned.configuration("rms_norm", "made_up", {"M": 1, "N": 128}, DEFAULT)
        return torch_path.forward(*arguments)

    monkeypatch.setattr(sys.modules["made_up_kernel"], "forward", one_long_row)
    default, faster = (Interval(median=m, low=m, high=m, count=9) for m in (6.0, 3.5))
    monkeypatch.setattr(tune_course.Course, "duel", lambda self, best: (default, faster))
    (shape,) = tune(op, "made_up", [WORKLOAD], device="cpu", seconds=0, seed=1).shapes
    assert (shape.sizes, shape.asked) == ({"M": 8, "N": 16}, ({"M": 1, "N": 128},))
    (entry,) = json.loads((tmp_path / "rms_norm-cpu.json").read_text())
    assert entry["sizes"] == {"M": 1, "N": 128}


def test_a_kernel_that_never_asks_gets_no_entry(tmp_path: Path):
    path = tmp_path / "gpu.json"
    assert not write_table(path, "b", [_shape(9, True, {"A": 1}, asked=())])
    assert not path.exists()


def test_a_large_space_is_searched_along_its_options():
    space = {name: tuple(range(8)) for name in ("A", "B", "C")}
    raced = set[tuple[int, ...]]()

    def race(field: Sequence[dict[str, int]]) -> dict[str, int] | None:
        raced.update(tuple(each[name] for name in "ABC") for each in field)
        right = [each for each in field if each["C"] != 7]
        return min(
            right, key=lambda e: (e["A"] - 5) ** 2 + (e["B"] - e["A"]) ** 2 + e["C"], default=None
        )

    calls = iter(range(10**6))
    best = search(space, race, random.Random(0), lambda: next(calls) > 60)
    assert best == {"A": 5, "B": 5, "C": 0}
    assert len(raced) < 300  # of 512


def test_a_search_where_nothing_is_right_ends():
    space = {name: tuple(range(8)) for name in ("A", "B", "C")}
    assert search(space, lambda field: None, random.Random(0), lambda: False) is None
    assert search({"A": (1, 2)}, lambda field: None, random.Random(0), lambda: False) is None


def test_configurations_are_held_to_the_implementations_own_tolerance(op: Op):
    loose = Tolerance(dtype=torch.float32, relative=2.0, reason="planted")
    made_up, bare = op.implementations
    own = replace(op, implementations=(replace(made_up, tolerances=(loose,)), bare))
    report = tune(
        own, "made_up", [WORKLOAD], device="cpu", directions=("forward",), seconds=60, seed=1,
        write=False,
    )  # fmt: skip
    (shape,) = report.shapes
    assert {t.outcome for t in shape.trials} == {Outcome.OK, Outcome.FAILED}
