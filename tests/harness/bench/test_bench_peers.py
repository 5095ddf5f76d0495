"""Baselines that prepare inputs of their own: once for each copy, and held to the reference."""

import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.harness.bench import direction as bench_direction
from tercet.harness.bench.peer_error import off_by
from tercet.harness.bench.run import BenchReport, bench
from tercet.harness.timing import ceilings, clock
from tercet.kernel.contract import Baseline, Workload
from tercet.ops.rms_norm.op import OP
from tercet.records import Outcome

WORKLOAD = Workload(name="small", sizes={"M": 24, "N": 64}, dtype=torch.float32)
COPY_BYTES = 24 * 64 * 4 + 64 * 4


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._SIDE, "cpu", 64)
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 2 * COPY_BYTES)
    monkeypatch.setattr(clock, "_CROSS_US", 2000.0)


def _prepare(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"scaled": arguments["x"] * arguments["weight"], "x": arguments["x"]}


def _normed(scaled: Tensor, x: Tensor) -> Tensor:
    return scaled * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BenchReport]:
    """Benches a baseline of these functions beside the op's torch path."""

    def run(prepare: Any, call: Any, tolerance: float | None = 1e-3) -> BenchReport:
        module = ModuleType("peer_baseline")
        module.prepare, module.run = prepare, call  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "peer_baseline", module)
        baseline = Baseline(
            name="peer",
            path="peer_baseline:run",
            prepare="peer_baseline:prepare",
            tolerance=tolerance,
        )
        return bench(
            replace(OP, baselines=(baseline,)),
            [WORKLOAD],
            implementations=["torch"],
            baselines=["peer"],
            directions=["forward"],
            seconds_per_row=0.02,
        )

    return run


def test_a_peer_prepares_once_for_each_copy(timed: Callable[..., BenchReport]) -> None:
    prepared, called = list[Tensor](), list[int]()

    def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
        prepared.append(arguments["x"].clone())
        return _prepare(arguments)

    def call(scaled: Tensor, x: Tensor) -> Tensor:
        called.append(x.data_ptr())
        return _normed(scaled, x)

    report = timed(prepare, call)
    assert report.passed, report.faults
    # six copies fill the cache three times
    assert len(prepared) == 6
    assert len(set(called)) == 6
    assert len(called) > 60
    assert not any(torch.equal(prepared[0], other) for other in prepared[1:])
    peers = [r for r in report.records if r.settings["variant"] == "peer"]
    assert [record.settings["cache"] for record in peers] == ["cold", "warm"]
    for record in peers:
        assert record.outcome is Outcome.OK
        assert 0 < record.metrics["relative_error"] < 1e-6
    assert all("relative_error" not in r.metrics for r in report.records if r not in peers)


@pytest.mark.parametrize("factor", [1.002, float("nan")])
def test_a_peer_that_computes_something_else_has_no_time(
    timed: Callable[..., BenchReport], factor: float
) -> None:
    report = timed(_prepare, lambda scaled, x: _normed(scaled, x) * factor)
    assert report.passed
    (record,) = [r for r in report.records if r.settings["variant"] == "peer"]
    assert record.outcome is Outcome.FAILED
    assert "away from the reference" in str(record.reason)
    assert "0.001 is allowed" in str(record.reason)


def test_without_a_tolerance_nothing_is_compared(timed: Callable[..., BenchReport]) -> None:
    report = timed(_prepare, lambda scaled, x: torch.zeros_like(x), tolerance=None)
    peers = [r for r in report.records if r.settings["variant"] == "peer"]
    assert [record.outcome for record in peers] == [Outcome.OK] * 2
    assert all("relative_error" not in record.metrics for record in peers)


def test_a_preparation_that_refuses_is_a_row_that_says_why(
    timed: Callable[..., BenchReport],
) -> None:
    def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"takes no {arguments['x'].dtype}")

    report = timed(prepare, _normed)
    (record,) = [r for r in report.records if r.settings["variant"] == "peer"]
    assert record.outcome is Outcome.FAILED
    assert record.reason == "ValueError: takes no torch.float32"
    assert [r.outcome for r in report.records if r is not record] == [Outcome.OK] * 2


@pytest.mark.parametrize("rows", [5, 128, 1000])
def test_relative_error_is_of_the_norm_at_both_ends(rows: int) -> None:
    assert OP.inputs is not None
    arguments = OP.inputs(replace(WORKLOAD, sizes={"M": rows, "N": 64}), 3, "cpu")
    right = OP.reference(**arguments)
    y = right[0] if isinstance(right, tuple) else right
    assert off_by(OP, arguments, (y,)) == 0
    assert off_by(OP, arguments, (y * 1.25,)) == pytest.approx(0.25)
    broken = y.clone()
    broken[-1] = torch.nan
    assert off_by(OP, arguments, (broken,)) == inf
