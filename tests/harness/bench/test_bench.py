"""Bench on the CPU: rows and their numbers, refusals, and kernels that cheat the clock."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tercet.harness.bench import direction as bench_direction
from tercet.harness.bench import variant as variants
from tercet.harness.bench.run import BenchReport, bench
from tercet.harness.bench.variant import Built, Cache, Variant
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.timing import ceilings, clock
from tercet.harness.timing.device_state import DeviceState
from tercet.kernel.contract import Baseline, Workload
from tercet.ops.rms_norm.op import OP
from tercet.records import Outcome, Record

WORKLOAD = Workload(name="small", sizes={"M": 24, "N": 64}, dtype=torch.float32)
ADDED = Workload(
    name="added", sizes={"M": 24, "N": 64}, dtype=torch.float32, options={"residual": True}
)
RIGHT = """
import tercet.ops.rms_norm.torch_path as right
forward, gradient = right.forward, right.gradient
"""


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._SIDE, "cpu", 64)
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 16 << 10)
    monkeypatch.setattr(clock, "_CROSS_US", 2000.0)


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., BenchReport]:
    """Benches a candidate given as source alone."""

    def run(source: str, name: str = "candidate", workload: Workload = WORKLOAD) -> BenchReport:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return bench(
            OP,
            [workload],
            implementations=(),
            baselines=False,
            candidate=candidate_from(path),
            seconds_per_row=0.02,
        )

    return run


def _rows(report: BenchReport, **settings: str) -> list[dict[str, float]]:
    return [
        record.metrics
        for record in report.records
        if record.outcome is Outcome.OK and settings.items() <= record.settings.items()
    ]


def test_rows_of_implementations_and_baselines():
    report = bench(OP, [ADDED], baselines=["eager"], seconds_per_row=0.02, seed=3)
    assert report.passed
    assert report.seed == 3
    keys = {
        (r.settings["variant"], r.settings["direction"], r.settings["cache"], r.settings["launch"])
        for r in report.records
    }
    assert keys == {
        (variant, direction, cache, "eager")
        for variant in ("torch", "eager")
        for direction in ("forward", "backward")
        for cache in ("cold", "warm")
    }
    record = report.records[0]
    assert record.kind == "bench"
    assert record.subject == "rms_norm"
    assert {key: record.settings[key] for key in ("workload", "sizes", "dtype", "options")} == {
        "workload": "added",
        "sizes": "M=24 N=64",
        "dtype": "float32",
        "options": "residual=True",
    }


def test_variants_that_are_timed_alone_say_so_and_have_a_state_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
):
    seen = iter(range(1, 100))

    def state(device: str) -> DeviceState:
        return DeviceState(
            clock_mhz=next(seen), memory_clock_mhz=1, power_w=1, temperature_c=1, reasons=4
        )

    monkeypatch.setattr(bench_direction, "device_state", state)

    def timed(settle_seconds: float) -> list[Record]:
        report = bench(
            OP,
            [WORKLOAD],
            baselines=["eager"],
            directions=["forward"],
            caches=["warm"],
            device="cpu",
            seconds_per_row=0.02,
            settle_seconds=settle_seconds,
        )
        return [record for record in report.records if record.outcome is Outcome.OK]

    in_turn, alone = timed(0.0), timed(0.001)
    assert len(in_turn) == len(alone) > 1
    assert all("pace" not in record.settings for record in in_turn)
    assert len({record.metrics["clock_mhz"] for record in in_turn}) == 1
    assert all(record.settings["pace"] == "alone" for record in alone)
    assert len({record.metrics["clock_mhz"] for record in alone}) == len(alone)
    assert all(record.metrics["repeats"] == 14 for record in alone)


def test_numbers_of_a_row_follow_from_its_cost_and_time():
    report = bench(OP, [ADDED], baselines=False, seconds_per_row=0.02, directions=["forward"])
    copy = report.ceilings.copy_bytes_per_second
    moved = 4 * 24 * 64 * 4 + 64 * 4 + 24 * 4
    for metrics in _rows(report):
        assert metrics["bytes"] == moved
        assert metrics["flops"] == 5 * 24 * 64
        assert metrics["repeats"] >= 7
        assert metrics["time_us_low"] <= metrics["time_us"] <= metrics["time_us_high"]
        assert metrics["bytes_per_second"] == pytest.approx(moved / metrics["time_us"] * 1e6)
        assert metrics["roofline_fraction"] == pytest.approx(
            metrics["floor_us"] / metrics["time_us"]
        )
        assert metrics["floor_us"] >= moved / copy * 1e6 * 0.999


def test_time_is_that_of_one_call(judge: Callable[..., BenchReport]):
    report = judge(
        f"{RIGHT}\nimport time\ndef forward(*a):\n time.sleep(2e-2)\n return right.forward(*a)"
    )
    assert report.passed
    for cache in ("cold", "warm"):
        (metrics,) = _rows(report, direction="forward", cache=cache)
        # not of two, nor of a part: a busy machine wakes it late, but not by a whole call
        assert 20_000 < metrics["time_us"] < 40_000


def test_a_missing_package_is_a_row_that_says_what_to_install():
    report = bench(OP, [WORKLOAD], implementations=(), baselines=["liger"], seconds_per_row=0.02)
    assert report.passed
    assert not report.timed
    assert [record.settings["direction"] for record in report.records] == ["forward", "backward"]
    for record in report.records:
        assert record.outcome is Outcome.FAILED
        assert "pip install liger-kernel" in str(record.reason)


def test_a_baseline_that_writes_to_its_inputs_spoils_no_one_elses(
    monkeypatch: pytest.MonkeyPatch,
):
    def greedy(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> Tensor:
        y = functional.rms_norm(x, (x.shape[-1],), weight, eps)
        x.data.zero_()
        return y

    module = ModuleType("greedy_baseline")
    module.run = greedy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "greedy_baseline", module)
    op = replace(OP, baselines=(Baseline(name="greedy", path="greedy_baseline:run"),))
    report = bench(op, [WORKLOAD], baselines=["greedy"], seconds_per_row=0.02)
    assert report.passed, report.faults
    for variant in ("greedy", "torch"):
        assert len(_rows(report, variant=variant)) == 4


def test_what_fails_after_many_calls_has_no_time(judge: Callable[..., BenchReport]):
    report = judge(
        f"{RIGHT}\ncalls = []\n"
        "def forward(*a):\n"
        " calls.append(1)\n"
        " if len(calls) > 40: raise OSError('gone')\n"
        " return right.forward(*a)"
    )
    assert not _rows(report, direction="forward")
    assert all("OSError: gone" in str(r.reason) for r in report.records if not r.metrics)


def test_an_implementation_for_another_device_is_a_row_when_asked_for():
    report = bench(OP, [WORKLOAD], implementations=["triton"], baselines=False)
    assert [record.outcome for record in report.records] == [Outcome.FAILED] * 2
    assert "runs on cuda" in str(report.records[0].reason)


def test_inputs_inside_the_cache_have_no_cold_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 1 << 40)
    report = bench(OP, [WORKLOAD], baselines=False, directions=["forward"], seconds_per_row=0.02)
    outcomes = {record.settings["cache"]: record.outcome for record in report.records}
    assert outcomes == {"cold": Outcome.FAILED, "warm": Outcome.OK}


def test_a_right_candidate_is_never_flagged(judge: Callable[..., BenchReport]):
    for number in range(5):
        report = judge(RIGHT, f"right_{number}")
        assert report.passed, report.faults
        assert len(_rows(report)) == 4


WRONG = {
    "wrong result": (
        "forward",
        "def forward(*a):\n y, t, r = right.forward(*a)\n return y * 1.001, t, r",
    ),
    "result of the first call": (
        "stale",
        "kept = []\n"
        "def forward(*a):\n"
        " if not kept: kept.append(right.forward(*a))\n"
        " return tuple(t.clone() for t in kept[0])",
    ),
    "result kept by address": (
        "stale",
        "kept = {}\n"
        "def forward(*a):\n"
        " key = a[0].data_ptr()\n"
        " if key not in kept: kept[key] = right.forward(*a), a[0]\n"
        " return tuple(t.clone() for t in kept[key][0])",
    ),
    "zeros once it is hot": (
        "stale",
        "calls = []\n"
        "def forward(*a):\n"
        " calls.append(1)\n"
        " found = right.forward(*a)\n"
        " return found if len(calls) < 30 else tuple(t * 0 for t in found)",
    ),
    "gradient of zeros once it is hot": (
        "stale",
        "calls = []\n"
        "def gradient(*a):\n"
        " calls.append(1)\n"
        " found = right.gradient(*a)\n"
        " return found if len(calls) < 30 else tuple(t * 0 for t in found)",
    ),
    "input written in the first call after the check": (
        "inputs",
        "calls = []\n"
        "def forward(*a):\n"
        " calls.append(1)\n"
        " found = right.forward(*a)\n"
        " if len(calls) == 2: a[0].data.mul_(2)\n"
        " return found",
    ),
    "input written once it is hot": (
        "inputs",
        "calls = []\n"
        "def forward(*a):\n"
        " calls.append(1)\n"
        " found = right.forward(*a)\n"
        " if len(calls) == 30: a[0].data.mul_(2)\n"
        " return found",
    ),
    "a clock that stands still": (
        "clock",
        "import time\n"
        "def forward(*a):\n"
        " if time.perf_counter_ns is not still: time.perf_counter_ns = still\n"
        " return right.forward(*a)\n"
        "def still(): return 0",
    ),
    "an event that is always quick": (
        "clock",
        "import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 0.001",
    ),
    "a synchronize without code": (
        "clock",
        "import torch\ntorch.cuda.synchronize.__code__ = (lambda device=None: None).__code__",
    ),
    "a harness clock replaced": (
        "clock",
        "import tercet.harness.timing.clock as clock\nclock._now = lambda: 0",
    ),
    "result kept by a sum of its inputs": (
        "stale",
        "kept = {}\n"
        "def forward(*a):\n"
        " key = tuple(a[0].shape), round(a[0].double().sum().item(), 3)\n"
        " if key not in kept: kept[key] = right.forward(*a)\n"
        " return tuple(t.clone() for t in kept[key])",
    ),
    "result kept by some of its inputs": (
        "stale",
        "kept = {}\n"
        "def forward(*a):\n"
        " key = tuple(a[0][::11, ::13].flatten().tolist())\n"
        " if key not in kept: kept[key] = right.forward(*a)\n"
        " return tuple(t.clone() for t in kept[key])",
    ),
    "nothing is done where it is timed": (
        "stale",
        "import sys\n"
        "def timed():\n"
        " frame = sys._getframe()\n"
        " while frame is not None and 'timed_calls' not in frame.f_code.co_filename:\n"
        "  frame = frame.f_back\n"
        " return frame is not None\n"
        "def forward(*a):\n"
        " if timed(): return tuple(t.clone() for t in kept)\n"
        " kept[:] = right.forward(*a)\n"
        " return tuple(kept)\n"
        "kept = []",
    ),
    "work in a thread": (
        "threads",
        "import threading, time\n"
        "def forward(*a):\n"
        " threading.Thread(target=time.sleep, args=(2,), name='later', daemon=True).start()\n"
        " return right.forward(*a)",
    ),
}


def test_a_candidate_reaches_neither_baselines_nor_the_process_of_the_judge(tmp_path: Path):
    path = tmp_path / "greedy.py"
    path.write_text(
        f"{RIGHT}\nimport time\nfrom torch.nn import functional\n"
        "functional.rms_norm = lambda *a, **k: time.sleep(0.2)\n"
        "import torch\ntorch.rms_norm = functional.rms_norm"
    )
    before = functional.rms_norm
    report = bench(
        OP,
        [WORKLOAD],
        implementations=(),
        baselines=["eager"],
        directions=["forward"],
        candidate=candidate_from(path),
        seconds_per_row=0.02,
    )
    assert functional.rms_norm is before
    assert len(_rows(report, variant="greedy")) == len(_rows(report, variant="eager")) == 2
    assert all(metrics["time_us"] < 20_000 for metrics in _rows(report, variant="eager"))


def test_a_candidate_whose_process_ends_is_a_row_that_failed(judge: Callable[..., BenchReport]):
    report = judge(
        f"{RIGHT}\nimport os\ncalls = []\n"
        "def forward(*a):\n"
        " calls.append(1)\n"
        " if len(calls) > 20: os._exit(7)\n"
        " return right.forward(*a)"
    )
    assert not _rows(report, direction="forward")
    assert any("exit status 7" in str(r.reason) for r in report.records)


@pytest.mark.parametrize("fault", WRONG)
def test_a_cheat_has_no_time_and_is_named(fault: str, judge: Callable[..., BenchReport]):
    check, source = WRONG[fault]
    report = judge(f"{RIGHT}\n{source}", fault.replace(" ", "_"))
    assert not report.passed
    assert check in {finding.check for finding in report.faults}
    refused = [record for record in report.records if record.outcome is Outcome.WRONG]
    assert refused
    assert any(str(record.reason).startswith(check) for record in refused)
    assert all(not record.metrics for record in refused)


def test_what_raises_is_a_row_that_failed(judge: Callable[..., BenchReport]):
    report = judge(f"{RIGHT}\ndef forward(*a): raise KeyError('tile')")
    assert {record.outcome for record in report.records} == {Outcome.FAILED}
    assert "KeyError: 'tile'" in str(report.records[0].reason)


def test_without_a_gradient_of_its_own_only_forward_is_timed(judge: Callable[..., BenchReport]):
    report = judge("from tercet.ops.rms_norm.torch_path import forward")
    assert len(_rows(report, direction="forward")) == 2
    assert not _rows(report, direction="backward")
    assert "has no gradient of its own" in {record.reason for record in report.records}


def test_a_graph_goes_round_the_copies_until_it_is_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured = list[tuple[list[Any], int]]()

    def capture(calls: Sequence[Any], stream: Any, *, keep: int) -> tuple[Any, list[Any]]:
        captured.append((list(calls), keep))
        return lambda: None, []

    monkeypatch.setattr(variants, "capture", capture)
    built = Built(variant=Variant(name="any", call=lambda prepared: ()))
    a, b, c = built.calls = [lambda at=at: (torch.tensor(at),) for at in range(3)]
    caches: tuple[Cache, ...] = ("cold", "warm")
    for cache in caches:
        built.prepare(cache, "graph", 7, None)
    assert captured == [([a, b, c] * 2, 3), ([a] * 7, 1)]
    built.prepare("cold", "graph", 2, None)
    assert captured[-1] == ([a, b, c], 3)
    built.prepare("cold", "eager", 7, None)
    assert built.blocks["cold", "eager"].calls == 3
