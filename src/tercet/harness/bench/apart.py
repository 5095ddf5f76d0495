"""Apart: a candidate that is timed in a process of its own, whose memory and clock are the judge's.

The judge writes inputs into memory that both processes map. Before each timed pass it stops the
candidate's process, swaps rows of the inputs of every call, and lets it go on: no result of
before is right, sums and samples of the contents stay nearly what they were, and nobody can work
ahead. Then it asks for one pass and takes the time until the reply by its own clock, which has to
confirm what the candidate's process says. Results of calls that it picks at random are read after
each pass, and compared with the reference after some. So a time that counts is that of right
results, from inputs that were new, between two moments of the judge's clock.
"""

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from tercet.child_process import ChildError
from tercet.harness.bench import timed_calls
from tercet.harness.bench.recheck import present
from tercet.harness.bench.rotation import Copy, Rotation, clone_copy
from tercet.harness.bench.variant import Built, Cache, Launch, Results
from tercet.harness.check.at_scale import judge_workload
from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.sandbox.bits import same_bits
from tercet.harness.sandbox.guard import describe, view
from tercet.harness.sandbox.session import Apart
from tercet.harness.timing.clock import Block, seconds_now
from tercet.kernel.contract import Op, Workload
from tercet.kernel.tuned import Direction

_CHILD = timed_calls.__name__
_KEPT = 2
_LONGER = 10  # runs of a graph, beside which the judge's clock is exact enough
_MOST_CHANGED = 128
_FEWEST_COMPARED, _MOST_COMPARED, _SHARE_COMPARED = 2, 8, 0.5
_PER_REQUEST_US = 1000.0  # what a request may cost above the median of those at the start
_TOLERANCE, _LEAST_US = 1.25, 1e-3
_TRIES, _LONGEST_PAUSE = 8, 0.1
_Key = tuple[Cache, Launch]


@dataclass(kw_only=True)
class _Shared:
    """One copy of the inputs: as the judge knows it, and as the candidate's process sees it."""

    known: Copy
    seen: Copy
    described: dict[str, Any]
    same: tuple[str, ...]  # prepared tensors that are the reference's arguments


@dataclass(kw_only=True)
class BuiltApart(Built):
    """A variant whose calls are made in a process of its own.

    Attributes:
        place: that process and its memory.
        op, workload, direction, names, rotation: of which calls; the rotation draws their inputs.
        device: "cpu" or "cuda".
    """

    place: Apart
    op: Op
    workload: Workload
    direction: Direction
    names: tuple[str, ...]
    rotation: Rotation
    device: str
    _shared: list[_Shared] = field(default_factory=list[_Shared])
    _order: dict[_Key, list[int]] = field(default_factory=dict[_Key, list[int]])
    _clocks: dict[_Key, list[tuple[float, float]]] = field(
        default_factory=dict[_Key, list[tuple[float, float]]]
    )
    _compared: dict[_Key, int] = field(default_factory=dict[_Key, int])
    _wrong: dict[_Key, dict[str, list[str]]] = field(
        default_factory=dict[_Key, dict[str, list[str]]]
    )
    _errors: dict[_Key, list[ErrorSummary]] = field(default_factory=dict[_Key, list[ErrorSummary]])
    _comparing_seconds: float = 0.0
    _timing_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._draw = random.Random()
        self.place.memory.reset()
        self.place.call(f"{_CHILD}:begin", direction=self.direction, names=list(self.names))

    def add_copies(
        self, copies: Sequence[Copy], direction: Direction, names: Sequence[str]
    ) -> None:
        """As Built.add_copies."""
        del direction, names
        added = [self._share(copy) for copy in copies]
        self._shared += added
        self._ask("add", copies=[each.described for each in added])

    def first_call(self, device: str) -> Results:
        """As Built.first_call."""
        del device
        reply = self._ask("first")
        self.peak_bytes = reply["peak_bytes"]
        return self._read(reply["results"])

    def prepare(self, cache: Cache, launch: Launch, least: int, stream: Any, warm: int = 1) -> None:
        """As Built.prepare. Each plain call of a pass has contents of its own."""
        del stream
        copies = len(self._shared) if cache == "cold" else min(warm, len(self._shared))
        order = list(range(copies)) * (max(1, least // copies) if launch == "graph" else 1)
        key = (cache, launch)
        self._ask("prepare", key=list(key), copies=order, keep=copies)
        self._order[key] = order
        self._clocks[key], self._compared[key] = [], 0
        self._wrong[key], self._errors[key] = {}, []
        self.blocks[key] = Block(
            run=lambda: self._run(key, 1, ()),
            calls=len(order),
            queued=launch == "graph",
            elsewhere=lambda runs: self._timed(key, runs),
        )

    def findings(self, cache: Cache, launch: Launch) -> list[Finding]:
        """What was wrong while this block was timed: "stale", "inputs", "clock", "threads"."""
        key = (cache, launch)
        wrong = self._wrong[key]
        if not self._compared[key]:
            self._pass(key, compare=True)
        changed = {name for each in self._shared for name in _differing(each.known, each.seen)}
        if changed:
            wrong["inputs"] = [f"a timed call wrote to its inputs: {', '.join(sorted(changed))}"]
        if message := self._unconfirmed(key):
            wrong.setdefault("clock", []).append(message)
        for check, message in self._ask("state").items():
            if message:
                wrong.setdefault(check, []).append(message)
        return [
            Finding(
                implementation=self.variant.name,
                case=str(self.workload),
                check=check,
                passed=check not in wrong,
                message="; ".join(wrong.get(check, ())),
                errors=tuple(self._errors[key]) if check == "stale" else (),
            )
            for check in ("inputs", "stale", "clock", "threads")
        ]

    def _timed(self, key: _Key, runs: int) -> float:
        """Microseconds per call; where Python makes the calls each run has new contents.

        What the judge's clock does not confirm is timed again, for another load on the machine may
        have kept it from seeing a reply in time; after the last try its own time counts.
        """
        once = 1 if key[1] == "eager" else runs * _LONGER
        claimed, least, alone = self._clocked_pass(key, once)
        for tried in range(_TRIES - 1):
            if claimed >= least:
                break
            time.sleep(min(_LONGEST_PAUSE, 1e-3 * 2**tried))
            claimed, least, alone = self._clocked_pass(key, once)
        self._clocks[key].append((claimed, alone))
        return max(claimed, least) / once / len(self._order[key])

    def _clocked_pass(self, key: _Key, runs: int) -> tuple[float, float, float]:
        """Microseconds that the process says, and the least that the judge's clock allows.

        Last without the time that other loads kept both processes from a core: a candidate may
        bring that about, so it counts for nothing but whether there is a finding.
        """
        claimed, measured, queued = self._pass(key, runs)
        least = measured - _PER_REQUEST_US
        return claimed, least / _TOLERANCE, (least - queued) / _TOLERANCE

    def _pass(
        self, key: _Key, runs: int = 1, compare: bool | None = None
    ) -> tuple[float, float, float]:
        """Timed runs on contents that are new; then the results of some calls are read."""
        order, began = self._order[key], seconds_now()
        distinct = len(set(order))
        last = len(order) - distinct
        slots = self._draw.sample(range(distinct), min(_KEPT, distinct))
        calls = [last + slot for slot in slots]
        if key[1] == "eager":
            self._run(key, 1, ())
        others = [at for at in range(distinct) if at not in slots]
        changed = [*slots, *self._draw.sample(others, min(len(others), _MOST_CHANGED))]
        with self.place.stopped():
            for slot in changed:
                self._change(self._shared[order[last + slot]])
            _wait(self.device)
        timed = self._run(key, runs, calls, after_a_stop=True)
        replies = self._ask("results", key=list(key), calls=calls)
        self._timing_seconds += seconds_now() - began
        if self._wants(key) if compare is None else compare:
            began = seconds_now()
            for slot, reply in zip(slots, replies, strict=True):
                self._compare(key, order[last + slot], self._read(reply))
            self._compared[key] += 1
            self._comparing_seconds += seconds_now() - began
        return timed

    def _run(
        self, key: _Key, runs: int, keep: Sequence[int], *, after_a_stop: bool = False
    ) -> tuple[float, float, float]:
        """For all runs, microseconds that the process says, those of the judge's clock, and those
        of them that both processes waited for a core."""
        queued, begin = self.place.queued_us(), seconds_now()
        reply = self._ask("run", key=list(key), runs=runs, keep=list(keep))
        # what is no time shows beside the judge's clock
        claimed = reply if isinstance(reply, float) and _LEAST_US < reply < math.inf else _LEAST_US
        measured = (seconds_now() - begin) * 1e6 - self.place.request_us[after_a_stop]
        queued = self.place.queued_us() - queued
        # a graph runs once more ahead
        part = runs / (runs + 1) if key[1] == "graph" else 1.0
        return claimed, measured * part, queued * part

    def _unconfirmed(self, key: _Key) -> str:
        """What is wrong with all of the times that the process says.

        Whatever else the machine does can only lengthen what the judge's clock sees, and on a busy
        one it may do so in any pass but a few: one that it confirms is enough. A time that it does
        not confirm is never a result, so a clock that is right now and then gains nothing by it.
        """
        clocks = self._clocks[key]
        if any(claimed >= least for claimed, least in clocks) or not clocks:
            return ""
        its, ours = (statistics.median(each) for each in zip(*clocks, strict=True))
        return (
            f"its process says that a timed pass takes {its:.0f} us, by the judge's clock it is "
            f"{ours:.0f} us at least: work runs where its clock does not see it, or the clock was "
            "replaced"
        )

    def _wants(self, key: _Key) -> bool:
        """Whether to compare the results of a pass; a process cannot know it before."""
        done = self._compared[key]
        if done < _FEWEST_COMPARED:
            return True
        cheap = self._comparing_seconds < _SHARE_COMPARED * self._timing_seconds
        return done < _MOST_COMPARED and cheap and self._draw.random() < 0.2

    def _compare(self, key: _Key, at: int, found: Results) -> None:
        copy = self._shared[at]
        arguments = self.rotation.arguments(copy.known.seed)
        arguments |= {name: copy.known.prepared[name] for name in copy.same}
        forward = self.direction == "forward"
        for finding in judge_workload(
            self.op,
            arguments,
            copy.known.prepared,
            [each for each in found if each is not None] if forward else None,
            {} if forward else present(self.names, found, copy.known),
            None if forward else copy.known.grad_outputs,
            implementation=self.variant.name,
            case=str(self.workload),
        ):
            self._errors[key] += finding.errors
            if not finding.passed:
                self._wrong[key].setdefault("stale", []).append(
                    f"wrong in a timed pass ({self.direction}, {', '.join(key)}), on inputs that "
                    f"were new: {finding.message}"
                )

    def _share(self, copy: Copy) -> _Shared:
        """The contents of a copy where the process finds them."""
        known = clone_copy(copy)
        described = dict[str, Any]()
        prepared = {name: self._put(each) for name, each in known.prepared.items()}
        incoming = [self._put(each) for each in known.grad_outputs]
        described["prepared"] = {name: told for name, (_, told) in prepared.items()}
        described["grad_outputs"] = [told for _, told in incoming]
        seen = Copy(
            seed=copy.seed,
            prepared={name: tensor for name, (tensor, _) in prepared.items()},
            grad_seed=copy.grad_seed,
            grad_outputs=[tensor for tensor, _ in incoming],
        )
        arguments = self.rotation.arguments(copy.seed)
        same = tuple(
            name
            for name, value in known.prepared.items()
            if isinstance(value, Tensor) and _equal(arguments.get(name), value)
        )
        return _Shared(known=known, seen=seen, described=described, same=same)

    def _put(self, value: Any) -> tuple[Any, Any]:
        """A tensor in the memory of both processes, and what the other one takes for it."""
        if not isinstance(value, Tensor):
            return value, value
        reach = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        size = (reach + 1) * value.element_size() if value.numel() else 0
        block = self.place.memory.take(size)
        told = describe(value, {"offset": block.offset, "whole": size, "start": 0})
        placed = view(self.place.memory, told)
        return placed.copy_(value), told

    def _change(self, copy: _Shared) -> None:
        """Other contents: two rows of each tensor change places; where none can, all are drawn."""
        if self.direction == "backward":
            pairs = zip(copy.known.grad_outputs, copy.seen.grad_outputs, strict=True)
        else:
            pairs = ((copy.known.prepared[name], copy.seen.prepared[name]) for name in copy.same)
        tensors = [
            (known, seen)
            for known, seen in pairs
            if isinstance(known, Tensor)
            and isinstance(seen, Tensor)
            and known.is_contiguous()
            and known.numel() > 1
        ]
        for known, seen in tensors:
            self._move_rows(known, seen)
        if not tensors:
            self._draw_anew(copy)

    def _move_rows(self, *both: Tensor) -> None:
        rows = [_plain(each).view(-1, each.shape[-1] if each.dim() > 1 else 1) for each in both]
        count, width = rows[0].shape
        if count > 1:
            pair = self._draw.sample(range(count), 2)
            for each in rows:
                each[pair] = each[pair[::-1]]
        else:
            moved = rows[0].roll(self._draw.randrange(1, width), -1)
            for each in rows:
                each.copy_(moved)

    def _draw_anew(self, copy: _Shared) -> None:
        seed = self._draw.randrange(2**31)
        if self.direction == "backward":
            copy.known.grad_seed = seed
            fresh: list[Any] = list(self.rotation.draw_grad_outputs(seed))
            both = [copy.known.grad_outputs, copy.seen.grad_outputs]
        else:
            copy.known.seed = seed
            drawn = self.op.prepare(self.rotation.arguments(seed))
            fresh = [drawn[name] for name in copy.known.prepared]
            both = [[*copy.known.prepared.values()], [*copy.seen.prepared.values()]]
        for each in both:
            for old, new in zip(each, fresh, strict=True):
                if isinstance(old, Tensor) and isinstance(new, Tensor):
                    old.copy_(new)

    def _read(self, replies: Sequence[Any]) -> Results:
        """Results from the judge's memory, which a process said where to find."""
        try:
            return tuple(
                None
                if each is None
                else view(self.place.memory, each["copy"]).clone().reshape(each["shape"])
                for each in replies
            )
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ChildError(
                "crashed", f"its process did not say where a result lies ({error})"
            ) from error

    def _ask(self, method: str, **arguments: Any) -> Any:
        return self.place.call(f"{_CHILD}:serve", method=method, arguments=arguments)


def _differing(known: Copy, seen: Copy) -> list[str]:
    names = [
        name
        for name, value in known.prepared.items()
        if isinstance(value, Tensor) and not same_bits(value, cast(Tensor, seen.prepared[name]))
    ]
    return names + [
        f"the incoming gradient of output {at}"
        for at, (a, b) in enumerate(zip(known.grad_outputs, seen.grad_outputs, strict=True))
        if a is not None and b is not None and not same_bits(a, b)
    ]


def _equal(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and a.dtype == b.dtype and same_bits(a, b)


def _plain(tensor: Tensor) -> Tensor:
    """Formats of eight bits as integers, which torch can index."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
