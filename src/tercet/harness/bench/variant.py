"""Variant: one thing to time, built on a rotation's copies into blocks for the clock.

Forward is timed without recording a gradient. Backward alone is timed as
`torch.autograd.grad(outputs, inputs, incoming, retain_graph=True)` after one forward on each copy:
what an op's registered gradient does, plus what autograd adds. In a graph that is the kernels
alone. Incoming gradients of an output that nothing uses are zeros that autograd makes, and count.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from tercet.harness.bench.baselines import Call, Prepared, repeatable_backward
from tercet.harness.bench.rotation import Copy, clone_copy
from tercet.harness.sandbox.session import Apart
from tercet.harness.timing.clock import Block, capture
from tercet.harness.timing.memory import peak_bytes
from tercet.harness.workloads.gradients import make_leaves, pair_grad_outputs
from tercet.kernel.contract import Op
from tercet.kernel.tuned import Direction

Cache = Literal["cold", "warm"]
Launch = Literal["graph", "eager"]
Results = tuple[Tensor | None, ...]


def _no_call(_: Prepared) -> tuple[Tensor, ...]:
    raise AssertionError("it is called in a process of its own")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An implementation or a baseline that is timed.

    Attributes:
        name: an implementation's, a baseline's or a configuration's.
        call: prepared arguments to outputs.
        around: entered around everything that calls it: which kernels run, in what configuration.
        judged_as: the op, with the tolerances that its results are held to; an implementation's
            are compared with the reference, and it returns the saved outputs too. None for a
            baseline.
        differentiable: whether it has a gradient of its own.
        explain: the reason to show for a missing import.
        prepare: from the reference's arguments to its own; None where it takes the op's.
        tolerance: of a baseline, as in `Baseline`.
        place: of a candidate, the process in which it is called instead; nothing else of this is
            used then but its name and whether it has a gradient.
    """

    name: str
    call: Call = field(default=_no_call)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    judged_as: Op | None = None
    differentiable: bool = True
    explain: Callable[[ImportError], str] | None = None
    prepare: Callable[[Prepared], dict[str, Any]] | None = None
    tolerance: float | None = None
    place: Apart | None = None

    @property
    def judged(self) -> bool:
        """Whether its results are compared with the reference."""
        return self.judged_as is not None


@dataclass(kw_only=True)
class Built:
    """A variant, ready to be timed in one direction.

    Attributes:
        variant: which.
        calls: per copy, one call; returns outputs or gradients.
        peak_bytes: the most memory one call allocates; None on a CPU.
        blocks: what the clock times.
        results: of a graph, the results of each copy, at fixed addresses.
        private: whether it works on clones of the copies, because it writes to its inputs.
        relative_error: of a baseline that is compared with the reference.
    """

    variant: Variant
    calls: list[Callable[[], Results]] = field(default_factory=list[Callable[[], Results]])
    private: bool = False
    peak_bytes: int | None = None
    relative_error: float | None = None
    blocks: dict[tuple[Cache, Launch], Block] = field(
        default_factory=dict[tuple[Cache, Launch], Block]
    )
    results: dict[Cache, list[Results]] = field(default_factory=dict[Cache, list[Results]])

    def add_copies(
        self, copies: Sequence[Copy], direction: Direction, names: Sequence[str]
    ) -> None:
        """Calls on these copies too; in a backward, the forward runs here."""
        with self.variant.around(), repeatable_backward():
            for copy in copies:
                copy = clone_copy(copy) if self.private else copy
                call = (
                    _forward(self.variant, copy)
                    if direction == "forward"
                    else _backward(self.variant, copy, names)
                )
                self.calls.append(call)

    def first_call(self, device: str) -> Results:
        """The results of a call on the first copy, and its peak memory, after a warm-up."""
        with self.variant.around(), repeatable_backward():
            self.calls[0]()
            self.peak_bytes = peak_bytes(self.calls[0], device)
            return self.calls[0]()

    def prepare(self, cache: Cache, launch: Launch, least: int, stream: Any, warm: int = 1) -> None:
        """The block of one cache and launch, of about `least` calls; a graph is captured here.

        Plain calls go over the copies once: their launches count in any case. Warm ones go round
        the first `warm` copies.
        """
        once = self.calls if cache == "cold" else self.calls[:warm]
        calls = once
        if cache == "warm" or launch == "graph":
            calls = calls * max(1, least // len(calls))
        if launch == "eager":
            block = Block(run=_loop(calls), calls=len(calls), around=self.variant.around)
        else:
            with self.variant.around(), repeatable_backward():
                replay, self.results[cache] = capture(calls, stream, keep=len(once))
            block = Block(run=replay, calls=len(calls), queued=True)
        self.blocks[cache, launch] = block


def _loop(calls: Sequence[Callable[[], Results]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


def _forward(variant: Variant, copy: Copy) -> Callable[[], Results]:
    def run() -> Results:
        with torch.no_grad():
            return variant.call(copy.prepared)

    return run


def _backward(variant: Variant, copy: Copy, names: Sequence[str]) -> Callable[[], Results]:
    arguments = make_leaves(copy.prepared, names)
    outputs = variant.call(arguments)
    grad_outputs = (
        copy.grad_outputs
        if variant.judged
        else [grad_output for grad_output in copy.grad_outputs if grad_output is not None]
    )
    dependent, incoming = pair_grad_outputs(outputs, grad_outputs)
    inputs = [arguments[name] for name in names]

    def run() -> Results:
        return torch.autograd.grad(
            dependent, inputs, incoming, retain_graph=True, allow_unused=True
        )

    return run
