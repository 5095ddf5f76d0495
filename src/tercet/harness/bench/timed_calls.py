"""Timed calls: the side of a bench that runs in a candidate's own process.

It makes calls on inputs that lie in the judge's memory, runs them when it is asked to, and says
where their results lie and what its own clock told. It knows no reference and no verdict. The judge
has a clock of its own around each request, and changes the inputs before it.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.bench.baselines import repeatable_backward
from tercet.harness.bench.rotation import Copy
from tercet.harness.bench.variant import Built, Cache, Launch, Results, Variant
from tercet.harness.sandbox.guard import view
from tercet.harness.sandbox.guest import Guest, current
from tercet.harness.timing.clock import Block, capture, check_clock, timing_on
from tercet.harness.timing.memory import kept_bytes
from tercet.harness.timing.threads import ThreadWatch
from tercet.kernel.contract import outputs_of
from tercet.kernel.select import using
from tercet.kernel.tuned import Direction

_Key = tuple[Cache, Launch]


class TimedCalls:
    """The calls of one workload in one direction."""

    def __init__(self, guest: Guest, direction: Direction, names: Sequence[str]) -> None:
        self._guest, self._names = guest, tuple(names)
        self._direction: Direction = direction
        self._device = guest.memory.device.type
        self._open = ExitStack()
        self._timer, self._stream = self._open.enter_context(timing_on(self._device))
        self._threads, self._left = ThreadWatch(), list[str]()
        self._calls = dict[_Key, list[Any]]()
        self._replays, self._kept = dict[_Key, Any](), dict[_Key, dict[int, Results]]()
        self._room = dict[tuple[int, int], dict[str, Any]]()
        op, kernels = guest.op, guest.kernels
        self._built = Built(
            variant=Variant(
                name="",
                call=lambda prepared: outputs_of(op.run(*prepared.values())),
                around=lambda: using(op, kernels),
                judged_as=op,
            )
        )

    def close(self) -> None:
        """Leaves the stream."""
        self._open.close()

    def add(self, copies: Sequence[Mapping[str, Any]]) -> int:
        """Calls on these copies too; the bytes of memory that are kept for them."""
        taken = [
            Copy(
                seed=0,
                prepared={name: self._view(each) for name, each in copy["prepared"].items()},
                grad_seed=0,
                grad_outputs=[self._view(each) for each in copy["grad_outputs"]],
            )
            for copy in copies
        ]
        return kept_bytes(
            lambda: self._built.add_copies(taken, self._direction, self._names), self._device
        )

    def first(self) -> dict[str, Any]:
        """A call on the first copy: its results and its peak memory."""
        results = self._built.first_call(self._device)
        return {"results": self._tell(0, results), "peak_bytes": self._built.peak_bytes}

    def prepare(self, key: _Key, copies: Sequence[int], keep: int) -> None:
        """Calls on these copies, in this order, of which the last so many results are kept."""
        calls = self._calls[key] = [self._built.calls[at] for at in copies]
        if key[1] == "graph":
            with self._built.variant.around(), repeatable_backward():
                self._replays[key], kept = capture(calls, self._stream, keep=keep)
            self._kept[key] = dict(enumerate(kept, len(calls) - keep))

    def run(self, key: _Key, runs: int, keep: Sequence[int]) -> float:
        """Runs all calls so often: microseconds by this process's clock.

        A graph runs once more before, so that the GPU is busy when the first is enqueued.
        """
        if key[1] == "graph":
            block = self._block(key, ())
            time = self._timer.round([block], [runs])[0] * block.calls * runs
        else:
            time = self._timer.time_twice(self._block(key, keep), runs, ahead=False).timed_us
        # now: a thread may be done when the judge asks for the state
        if message := self._threads.finding("", "").message:
            self._left.append(message)
        return time

    def results(self, key: _Key, calls: Sequence[int]) -> list[Any]:
        """The results of calls that were kept in the last run, by their indices in the order."""
        kept = self._kept[key]
        found = [self._tell(slot, kept[at]) for slot, at in enumerate(calls)]
        if self._device != "cpu":
            torch.cuda.synchronize()
        return found

    def state(self) -> dict[str, str]:
        """What a candidate did to this process's clock, and which threads it left."""
        return {
            "clock": check_clock("", "").message,
            "threads": self._left[0] if self._left else "",
        }

    def _block(self, key: _Key, keep: Sequence[int]) -> Block:
        calls = self._calls[key]
        if key[1] == "graph":
            return Block(run=self._replays[key], calls=len(calls), queued=True)
        kept = self._kept[key] = dict[int, Results]()
        wanted = frozenset(keep)

        def run() -> None:
            for at, call in enumerate(calls):
                result = call()
                if at in wanted:
                    kept[at] = result
                del result

        return Block(run=run, calls=len(calls), around=self._built.variant.around)

    def _view(self, each: Any) -> Any:
        if not isinstance(each, dict):
            return each
        return view(self._guest.memory, cast("dict[str, Any]", each))

    def _tell(self, slot: int, results: Results) -> list[dict[str, Any] | None]:
        return [
            None if each is None else self._copied((slot, at), each)
            for at, each in enumerate(results)
        ]

    def _copied(self, room: tuple[int, int], result: Tensor) -> dict[str, Any]:
        """Where a copy of a result lies; the next one of that room is written over it."""
        if type(result) is not Tensor:
            raise UnsupportedError(f"a result is a {type(result).__name__}, not a torch.Tensor")
        flat = result.detach().flatten()
        size = flat.numel() * flat.element_size()
        known = self._room.get(room)
        if known is None or known["whole"] != size:
            block = self._guest.memory.take(size)
            known = self._room[room] = {"offset": block.offset, "whole": size, "start": 0}
        copy = {**known, "shape": [len(flat)], "stride": [1], "dtype": flat.dtype}
        view(self._guest.memory, copy).copy_(flat)
        return {"copy": copy, "shape": list(result.shape)}


_timed: list[TimedCalls] = []


def begin(direction: Direction, names: Sequence[str]) -> None:
    """In the child: forgets the calls of before."""
    end()
    guest = current()
    guest.begin()
    _timed.append(TimedCalls(guest, direction, names))


def end() -> None:
    """In the child: lets go of all calls and their memory."""
    while _timed:
        _timed.pop().close()


def has_gradient() -> bool:
    """In the child: whether the implementation has a gradient of its own."""
    return current().kernels.gradient is not None


def serve(method: str, arguments: dict[str, Any]) -> Any:
    """In the child: one of the methods of TimedCalls; keys arrive as lists."""
    if "key" in arguments:
        arguments["key"] = tuple(arguments["key"])
    return getattr(_timed[-1], method)(**arguments)
