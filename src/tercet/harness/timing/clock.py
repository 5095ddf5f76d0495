"""Clock: times blocks of calls, on a GPU by events, elsewhere by the host's clock.

The code that is timed may be hostile: it could replace a clock to look fast. So the functions that
tell the time are bound here, when this module is imported, before any candidate is; what was
replaced later is named by `clock_untouched`; and each block is timed once more by a second clock,
which has to agree (`clocks_agree`): a full synchronize also waits for work on other streams.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tercet.harness.finding import Finding

_now = time.perf_counter_ns
_second_clock = time.clock_gettime_ns
_RAW = time.CLOCK_MONOTONIC_RAW
_Event: Any = torch.cuda.Event
_record: Any = torch.cuda.Event.record
_elapsed: Any = torch.cuda.Event.elapsed_time
_synchronize: Any = torch.cuda.synchronize
_Graph: Any = torch.cuda.CUDAGraph
_replay: Any = torch.cuda.CUDAGraph.replay
_capturing: Any = torch.cuda.graph
_on_stream: Any = torch.cuda.stream

_WATCHED: tuple[tuple[str, Any, str], ...] = (
    ("time.perf_counter", time, "perf_counter"),
    ("time.perf_counter_ns", time, "perf_counter_ns"),
    ("time.monotonic", time, "monotonic"),
    ("time.monotonic_ns", time, "monotonic_ns"),
    ("time.time", time, "time"),
    ("time.clock_gettime_ns", time, "clock_gettime_ns"),
    ("torch.cuda.Event", torch.cuda, "Event"),
    ("torch.cuda.Event.record", torch.cuda.Event, "record"),
    ("torch.cuda.Event.elapsed_time", torch.cuda.Event, "elapsed_time"),
    ("torch.cuda.Event.synchronize", torch.cuda.Event, "synchronize"),
    ("torch.cuda.synchronize", torch.cuda, "synchronize"),
    ("torch.cuda.CUDAGraph", torch.cuda, "CUDAGraph"),
    ("torch.cuda.CUDAGraph.replay", torch.cuda.CUDAGraph, "replay"),
    ("torch.cuda.graph", torch.cuda, "graph"),
    ("torch.cuda.stream", torch.cuda, "stream"),
    ("torch.cuda.current_stream", torch.cuda, "current_stream"),
    ("torch.autograd.grad", torch.autograd, "grad"),
)
_AT_IMPORT: tuple[tuple[Any, Any], ...] = tuple(
    (getattr(owner, name), getattr(getattr(owner, name), "__code__", None))
    for _, owner, name in _WATCHED
)
_OWN = {
    name: value for name, value in globals().items() if name.startswith("_") and name[1:2] != "_"
}

_BLOCK_US = 1000.0
_CROSS_US = 20_000.0
# What starting, synchronizing and a busy host may add to a block that is timed by both clocks.
_SLACK_US = 1000.0
_RETRIES = 3
_WARM_UPS = 3


@dataclass(frozen=True, kw_only=True)
class Block:
    """Calls that are timed together.

    Attributes:
        run: runs `calls` calls: one replay of a graph, or a loop.
        calls: how many.
        queued: True when the GPU has to be busy as `run` is enqueued (a graph: its launch must not
            count); False when it has to be idle (plain calls: their launches do count).
        around: entered around every timing of this block, outside of the clock.
        elsewhere: of a block that runs in another process: about so many runs of it there; gives
            microseconds per call.
    """

    run: Callable[[], object]
    calls: int
    queued: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    elsewhere: Callable[[int], float] | None = None


@dataclass(frozen=True, kw_only=True)
class TwoClocks:
    """The same work timed by two clocks: the one that results come from, and another."""

    timed_us: float
    second_us: float
    calls: int


class Timer(Protocol):
    """Times blocks; each is run once before, so that code and (where small) data are warm."""

    def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
        """Microseconds per call of each block, each run `repeats` times."""
        ...

    def occupy(self, block: Block, runs: int) -> None:
        """Runs the block untimed; a GPU may still be at it when this returns."""
        ...

    def time_twice(self, block: Block, runs: int, *, ahead: bool = True) -> TwoClocks:
        """The same runs by two independent clocks; with `ahead`, after one that is not timed."""
        ...


class _Occupying:
    """Runs blocks untimed."""

    def occupy(self, block: Block, runs: int) -> None:
        """As Timer."""
        with block.around():
            for _ in range(runs):
                block.run()


class HostTimer(_Occupying):
    """Times blocks on the CPU by the host's clock."""

    def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
        """As Timer."""
        times = list[float]()
        for block, count in zip(blocks, repeats, strict=True):
            if block.elsewhere is not None:
                times.append(block.elsewhere(count))
                continue
            with block.around():
                block.run()
                start = _now()
                for _ in range(count):
                    block.run()
                times.append((_now() - start) / 1e3 / (count * block.calls))
        return times

    def time_twice(self, block: Block, runs: int, *, ahead: bool = True) -> TwoClocks:
        """As Timer; the second clock is the kernel's raw monotonic one."""
        with block.around():
            if ahead:
                block.run()
            second, first = _second_clock(_RAW), _now()
            for _ in range(runs):
                block.run()
            timed, other = _now() - first, _second_clock(_RAW) - second
        return TwoClocks(timed_us=timed / 1e3, second_us=other / 1e3, calls=runs * block.calls)


class DeviceTimer(_Occupying):
    """Times blocks on a CUDA or ROCm GPU by events on one stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def round(self, blocks: Sequence[Block], repeats: Sequence[int]) -> list[float]:
        """As Timer. The host waits once, at the end, unless a block has to find the GPU idle."""
        events = list[tuple[Any, Any] | None]()
        times = list[float]()
        for block, count in zip(blocks, repeats, strict=True):
            if block.elsewhere is not None:
                _synchronize()
                times.append(block.elsewhere(count))
                events.append(None)
                continue
            first, last = _Event(enable_timing=True), _Event(enable_timing=True)
            with block.around():
                block.run()
                if not block.queued:
                    _synchronize()
                _record(first, self._stream)
                for _ in range(count):
                    block.run()
                _record(last, self._stream)
            events.append((first, last))
            times.append(0.0)
        _synchronize()
        return [
            us if pair is None else _elapsed(*pair) * 1e3 / (count * block.calls)
            for us, pair, block, count in zip(times, events, blocks, repeats, strict=True)
        ]

    def time_twice(self, block: Block, runs: int, *, ahead: bool = True) -> TwoClocks:
        """As Timer; the second clock is the host's, around a synchronize of all streams."""
        first, last = _Event(enable_timing=True), _Event(enable_timing=True)
        with block.around():
            if ahead:
                block.run()
            _synchronize()
            start = _second_clock(_RAW)
            _record(first, self._stream)
            for _ in range(runs):
                block.run()
            _record(last, self._stream)
            _synchronize()
            host = _second_clock(_RAW) - start
        timed: float = _elapsed(first, last) * 1e3
        return TwoClocks(timed_us=timed, second_us=host / 1e3, calls=runs * block.calls)


def repeats_for(timer: Timer, blocks: Sequence[Block]) -> list[int]:
    """How often to run each block so that it lasts about a millisecond."""
    once = timer.round(blocks, [1] * len(blocks))
    return [
        max(1, math.ceil(_BLOCK_US / max(us * block.calls, 0.1)))
        for us, block in zip(once, blocks, strict=True)
    ]


def seconds_now() -> float:
    """The host's clock, for budgets."""
    return _now() / 1e9


def capture(
    calls: Sequence[Callable[[], Any]], stream: Any, *, keep: int
) -> tuple[Callable[[], None], list[Any]]:
    """The calls, one after another, as a CUDA graph.

    Each call runs before on the stream (kernels are compiled, workspaces are allocated). The graph
    has a memory pool of its own; the results of the last `keep` calls lie there, and each replay
    writes them anew. Results of calls before them are dropped at once, so that the next call takes
    their memory as it would outside of a graph.

    Returns:
        what replays the graph on the current stream, and the last `keep` results.
    """
    with _on_stream(stream):
        for _ in range(_WARM_UPS):
            calls[0]()
        for call in calls:
            call()
    _synchronize()
    graph = _Graph()
    results = list[Any]()
    with _capturing(graph, stream=stream):
        for at, call in enumerate(calls):
            result = call()
            if at >= len(calls) - keep:
                results.append(result)
            del result

    def replay() -> None:
        _replay(graph)

    _synchronize()
    return replay, results


def clocks_agree(timer: Timer, block: Block, per_call_us: float, name: str, case: str) -> Finding:
    """Finding "clock": whether a second clock confirms the time per call that was measured.

    Work on another stream or in another thread, and a replaced clock, show here. A busy host may
    disturb one comparison: only disagreement in each of three is one.
    """
    runs = max(1, math.ceil(_CROSS_US / max(per_call_us * block.calls, 0.1)))
    message = ""
    for _ in range(_RETRIES):
        message = _disagreement(timer.time_twice(block, runs), per_call_us, block)
        if not message:
            break
    return Finding(
        implementation=name, case=case, check="clock", passed=not message, message=message
    )


def _disagreement(both: TwoClocks, per_call_us: float, block: Block) -> str:
    claimed_us = per_call_us * both.calls
    wrong = (
        both.second_us > 1.1 * both.timed_us + _SLACK_US
        or both.timed_us > 1.1 * both.second_us + _SLACK_US
    )
    # Without a graph the host sets the pace, and another load may slow it from one second to the
    # next: there the two clocks are compared on the same calls only.
    if block.queued:
        wrong = wrong or (
            both.second_us > 1.5 * claimed_us + _SLACK_US
            or claimed_us > 1.5 * both.second_us + _SLACK_US
        )
    if not wrong:
        return ""
    return (
        f"{both.calls} calls took {both.timed_us:.0f} us by the timing clock and "
        f"{both.second_us:.0f} us by a second clock around everything; the reported time per call "
        f"gives {claimed_us:.0f} us: work runs where the timing clock does not see it (another "
        "stream or thread), or a clock was replaced"
    )


def check_clock(name: str, case: str) -> Finding:
    """Finding "clock": whether every function that tells the time is the one of the start."""
    replaced = [
        label
        for (label, owner, attribute), (original, code) in zip(_WATCHED, _AT_IMPORT, strict=True)
        if getattr(owner, attribute, None) is not original
        or getattr(original, "__code__", None) is not code
    ]
    own: dict[str, Any] = globals()
    replaced += [f"{__name__}.{key}" for key, value in _OWN.items() if own[key] is not value]
    message = f"replaced while the kernel ran: {', '.join(replaced)}" if replaced else ""
    return Finding(
        implementation=name, case=case, check="clock", passed=not replaced, message=message
    )


@contextmanager
def timing_on(device: str) -> Generator[tuple[Timer, Any]]:
    """A timer for the device, and the stream (None on a CPU) that is current in the block.

    Everything runs on one side stream: a graph cannot be captured on the default one, and the
    backward of a call runs on the stream of its forward.
    """
    if device == "cpu":
        yield HostTimer(), None
        return
    stream: Any = torch.cuda.Stream()
    _synchronize()
    with _on_stream(stream):
        yield DeviceTimer(stream), stream
    _synchronize()
