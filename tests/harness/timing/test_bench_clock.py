"""Timers, rounds, copies and graphs: the logic that times, with clocks and graphs of our own."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tercet.harness.bench import direction as bench_direction
from tercet.harness.bench import variant
from tercet.harness.bench.direction import Session
from tercet.harness.bench.rotation import Rotation, copies_needed
from tercet.harness.bench.variant import Variant
from tercet.harness.timing import clock
from tercet.harness.timing.ceilings import Ceilings
from tercet.harness.timing.clock import Block, DeviceTimer, HostTimer, TwoClocks, clocks_agree
from tercet.harness.timing.device_state import DeviceState
from tercet.harness.timing.interleave import interleave
from tercet.harness.timing.sequential import time_sequentially
from tercet.harness.timing.threads import ThreadWatch
from tercet.kernel.contract import Workload, outputs_of
from tercet.kernel.select import load, using
from tercet.ops.rms_norm.op import OP

WORKLOAD = Workload(
    name="w", sizes={"M": 6, "N": 32}, dtype=torch.float32, options={"residual": True}
)


class FakeTimer:
    """Gives each block the time in `costs`, and remembers in which order they came."""

    def __init__(self, costs: dict[int, float]) -> None:
        self.costs, self.rounds = costs, list[list[int]]()
        self.occupied = list[tuple[int, int]]()

    def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
        self.rounds.append([block.calls for block in blocks])
        return [self.costs[block.calls] for block in blocks]

    def occupy(self, block: Block, runs: int) -> None:
        self.occupied.append((block.calls, runs))

    def time_twice(self, block: Block, runs: int) -> TwoClocks:
        us = self.costs[block.calls] * runs * block.calls
        return TwoClocks(timed_us=us, second_us=us, calls=runs * block.calls)


def _block(calls: int, queued: bool = False) -> Block:
    return Block(run=lambda: None, calls=calls, queued=queued)


def test_rounds_interleave_and_start_with_another_variant_each_time():
    timer = FakeTimer({1: 5.0, 2: 7.0, 3: 9.0})
    samples = interleave(timer, [_block(1), _block(2), _block(3)], seconds=10)
    assert [set(each) for each in samples] == [{5.0}, {7.0}, {9.0}]
    assert len(samples[0]) == 7  # constant times settle at the least number of rounds
    assert timer.rounds[1:4] == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


def test_a_noisy_variant_keeps_all_running_until_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
):
    class Noisy(FakeTimer):
        def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
            times = super().round(blocks, repeats)
            return [us * (1 + 0.2 * (len(self.rounds) % 2)) for us in times]

    seconds = iter(range(1000))
    monkeypatch.setattr("tercet.harness.timing.interleave.seconds_now", lambda: next(seconds))
    samples = interleave(Noisy({1: 5.0, 2: 7.0}), [_block(1), _block(2)], seconds=10)
    assert [len(each) for each in samples] == [27, 27]


def test_alone_each_runs_for_a_while_before_its_samples():
    """The clock of a GPU at its limit of power: it follows what ran for the last 100 ms."""
    state = DeviceState(
        clock_mhz=1.0, memory_clock_mhz=1.0, power_w=1.0, temperature_c=1.0, reasons=4
    )

    class Limited(FakeTimer):
        """What runs after another kind takes a third longer, until it has run for long enough."""

        def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
            times = super().round(blocks, repeats)
            kind = blocks[0].calls
            mine = [
                runs * self.costs[kind] * kind
                for calls, runs in self.occupied[-1:]
                if calls == kind
            ]
            return [us if sum(mine) >= 100_000 else us * 4 / 3 for us in times]

    def seen() -> DeviceState:
        # asked while the block runs, at its own clock
        return state.model_copy(update={"clock_mhz": float(timer.occupied[-1][0])})

    timer = Limited({1: 5.0, 2: 7.0})
    found = time_sequentially(timer, [_block(1), _block(2)], 0.15, seen)
    assert [set(each.samples) for each in found] == [{5.0}, {7.0}]
    assert [len(each.samples) for each in found] == [14, 14]
    assert [each.state.clock_mhz for each in found if each.state] == [1.0, 2.0]
    # twice, in opposite orders, each sample 10 ms
    assert [kinds[0] for kinds in timer.rounds[1:]] == [1, 2, 2, 1]


def test_the_host_timer_divides_by_calls_and_repeats(monkeypatch: pytest.MonkeyPatch):
    ticks = iter([1000, 61_000])
    monkeypatch.setattr(clock, "_now", lambda: next(ticks))
    ran = list[int]()
    block = Block(run=lambda: ran.append(1), calls=4)
    assert HostTimer().round([block], [5]) == [pytest.approx(3.0)]
    assert len(ran) == 6  # one before the clock starts


@pytest.mark.parametrize(
    ("queued", "order"),
    [
        (True, ["run", "record", "run", "run", "record", "synchronize"]),
        (False, ["run", "synchronize", "record", "run", "run", "record", "synchronize"]),
    ],
)
def test_the_device_timer_hides_a_graphs_launch_and_counts_an_eager_one(
    queued: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
):
    log = list[str]()
    monkeypatch.setattr(clock, "_Event", lambda enable_timing: object())
    monkeypatch.setattr(clock, "_record", lambda event, stream: log.append("record"))
    monkeypatch.setattr(clock, "_synchronize", lambda: log.append("synchronize"))
    monkeypatch.setattr(clock, "_elapsed", lambda first, last: 0.03)
    block = Block(run=lambda: log.append("run"), calls=3, queued=queued)
    assert DeviceTimer(None).round([block], [2]) == [pytest.approx(5.0)]
    assert log == order


@pytest.mark.parametrize(
    ("timed", "second", "claimed", "passed"),
    [
        (20_000.0, 20_100.0, 10.0, True),
        (20_000.0, 40_000.0, 10.0, False),  # work that the timing clock does not see
        (40_000.0, 20_000.0, 10.0, False),  # a second clock that is slowed
        (20_000.0, 20_000.0, 2.0, False),  # a replaced clock told 2 us in the rounds
        (20_000.0, 20_900.0, 10.0, True),  # a synchronize on a busy host
    ],
)
def test_two_clocks_have_to_agree(timed: float, second: float, claimed: float, passed: bool):
    class Two(FakeTimer):
        def time_twice(self, block: Block, runs: int) -> TwoClocks:
            return TwoClocks(timed_us=timed, second_us=second, calls=2000)

    found = clocks_agree(Two({}), _block(1, queued=True), claimed, "name", "case")
    assert (found.check, found.passed) == ("clock", passed)


def test_one_disturbed_comparison_is_no_disagreement():
    class Once(FakeTimer):
        tries = 0

        def time_twice(self, block: Block, runs: int) -> TwoClocks:
            self.tries += 1
            us = 20_000.0
            return TwoClocks(timed_us=us, second_us=us * (9 if self.tries < 3 else 1), calls=2000)

    assert clocks_agree(Once({}), _block(1), 10.0, "name", "case").passed


def test_copies_exceed_the_cache_three_times_and_respect_memory():
    assert copies_needed(1 << 20, 60 << 20, room=1000) == 180
    assert copies_needed(1 << 30, 60 << 20, room=1000) == 2
    assert copies_needed(1 << 30, 60 << 20, room=1) == 1
    assert "4096 copies" in str(copies_needed(1 << 10, 60 << 20, room=10**6))
    assert copies_needed(20 << 10, 60 << 20, room=10**6) == 4096
    assert "fit in the free memory" in str(copies_needed(1 << 20, 60 << 20, room=100))


def test_copies_differ_are_refreshed_in_place_and_restored():
    rotation = Rotation(OP, WORKLOAD, 5, "cpu", gradient=True)
    rotation.grow(3)
    first, second = rotation.copies[:2]
    x, grad_output = first.prepared["x"], first.grad_outputs[0]
    assert grad_output is not None
    assert not torch.equal(x, second.prepared["x"])
    assert [w is None for w in first.grad_outputs] == [False, False, True]  # rstd has no gradient
    assert rotation.changed(first) == ()

    before = x.clone()
    rotation.refresh(first)
    assert first.prepared["x"] is x
    assert not torch.equal(x, before)
    assert rotation.changed(first) == ()

    x[2, 3] = torch.nan
    grad_output[0, 0] += 1
    assert rotation.changed(first) == ("x", "the incoming gradient of output 0")
    rotation.restore(first)
    assert rotation.changed(first) == ()


def _fake_capture(works: bool) -> Callable[..., tuple[Callable[[], None], list[Any]]]:
    """A graph on the CPU: replaying runs the calls again into the first results' memory."""

    def capture(
        calls: Sequence[Callable[[], Any]], stream: Any, *, keep: int
    ) -> tuple[Callable[[], None], list[Any]]:
        results = [call() for call in calls]

        def replay() -> None:
            for call, kept in zip(calls, results, strict=True):
                for old, new in zip(kept, call(), strict=True):
                    if works and old is not None:
                        old.copy_(new)

        return replay, results[-keep:]

    return capture


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_a_graph_does_not_write_is_found(
    works: bool, direction: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(variant, "capture", _fake_capture(works))
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 4 << 10)
    monkeypatch.setattr(clock, "_CROSS_US", 1000.0)
    # these graphs run on the host, whose other load may come and go between two timings
    monkeypatch.setattr(clock, "_SLACK_US", 1e9)
    session = Session(
        op=OP,
        device="cpu",
        seed=1,
        ceilings=Ceilings(device="cpu", l2_bytes=1, copy_bytes_per_second=1e9),
        caches=("cold", "warm"),
        launches=("graph", "eager"),
        seconds_per_row=0.01,
        threads=ThreadWatch(),
    )
    kernels = load(OP, "torch")
    judged = Variant(
        name="torch",
        call=lambda prepared: outputs_of(OP.run(*prepared.values())),
        around=lambda: using(OP, kernels),
        judged_as=OP,
    )
    records, findings = bench_direction.bench_direction(session, WORKLOAD, direction, [judged])
    outcome = {
        (record.settings["cache"], record.settings["launch"]): record.outcome for record in records
    }
    graph = "ok" if works else "wrong"
    assert outcome == {
        ("cold", "graph"): graph,
        ("warm", "graph"): graph,
        ("cold", "eager"): "ok",
        ("warm", "eager"): "ok",
    }
    stale = [finding for finding in findings if finding.check == "stale"]
    assert sum(finding.passed for finding in stale) == (4 if works else 2)
    assert all(finding.errors for finding in stale)
