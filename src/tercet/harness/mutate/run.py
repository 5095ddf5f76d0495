"""Mutation testing: how many one-place changes of an op's own kernels `check` finds.

Each mutant is checked in a process of its own until something is red. One
that stays green is either a fault that the checks miss, or changes nothing that anybody could see;
`mutants.json` in the op's folder lists the latter with the reason. A line of Python that no case
reaches is not changed but counted: what another device runs, or what the cases lack. (R. DeMillo,
R. Lipton and F. Sayward, "Hints on Test Data Selection", 1978.)
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from shlex import quote
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tercet.environment import usable_cores
from tercet.errors import UnsupportedError
from tercet.harness.check.run import cannot_run
from tercet.harness.mutate.cpp_source import mutants_of_cpp
from tercet.harness.mutate.explained import explanations
from tercet.harness.mutate.mutant import Mutant
from tercet.harness.mutate.mutant_check import MutantCheck, Verdict
from tercet.harness.mutate.python_source import mutants_of_python
from tercet.harness.mutate.reached import is_reached
from tercet.harness.mutate.sources import sources_of
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.contract import Implementation, Op
from tercet.kernel.register import folder_of
from tercet.ops.discover import address_of

# a mutant that takes longer than the sources as they are, by so much, counts as endless
_SLOWER, _SECONDS = 4.0, 20.0
_POLL_SECONDS = 1.0
_UNTRIED = Verdict(by=None, message="", seconds=0.0)


End = Literal["killed", "survived", "explained", "unreached"]


class Tried(BaseModel):
    """One mutant and how it ended.

    Attributes:
        implementation, file, line, function, kind, before, after: as Mutant.
        by: the check that found it; None for a survivor.
        message: of that check.
        reason: why a survivor changes nothing, where that is known.
        reached: whether the check runs that line at all; else it was not tried.
        seconds: of wall time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    file: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    by: str | None
    message: str = ""
    reason: str = ""
    reached: bool = True
    seconds: float = 0.0

    @property
    def end(self) -> End:
        """The survivors are those that change something, as far as anybody knows."""
        if self.reason:
            return "explained"
        if not self.reached:
            return "unreached"
        return "survived" if self.by is None else "killed"


class MutationReport(BaseModel):
    """All that were tried.

    Attributes:
        op, device, seed: what was checked, where, on which inputs.
        mutants: how many there are, tried or not: implementation -> count.
        tried: in the order of files and lines.
        skipped: implementation -> why it cannot run here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    mutants: dict[str, int]
    tried: tuple[Tried, ...]
    skipped: dict[str, str]

    @property
    def survivors(self) -> tuple[Tried, ...]:
        """Those that are not explained."""
        return tuple(each for each in self.tried if each.end == "survived")

    def ends(self, implementation: str) -> Counter[End]:
        """How its mutants ended."""
        return Counter(each.end for each in self.tried if each.implementation == implementation)

    def score(self, implementation: str) -> float | None:
        """Killed, of those that change something; None where none was tried."""
        ends = self.ends(implementation)
        counted = ends["killed"] + ends["survived"]
        return ends["killed"] / counted if counted else None


def mutants_of(implementation: Implementation) -> list[Mutant]:
    """Every mutant of an implementation's sources."""
    return [
        mutant
        for path in sources_of(implementation)
        for mutant in (mutants_of_python if path.suffix == ".py" else mutants_of_cpp)(path)
    ]


def mutate(
    op: Op,
    *,
    implementation: str | None = None,
    device: str | None = None,
    seed: int = 0,
    sample: int | None = None,
    jobs: int | None = None,
    explained: bool = False,
    on_done: Callable[[int, int], None] | None = None,
) -> MutationReport:
    """Checks mutants of an op's implementations.

    Args:
        op: from `ops.discover.find`.
        implementation: only this one. Default: all that can run on the device.
        device: "cpu" or "cuda"; None is "cuda" where there is one.
        seed: of the checks' inputs, and of the sample.
        sample: how many mutants of each implementation; None: all.
        jobs: how many at once; None: one a CPU core.
        explained: also try those that are known to change nothing.
        on_done: called with (done, all) after each.

    UnsupportedError where an implementation is red without any change, and for a sample of none.
    """
    if sample is not None and sample < 1:
        raise UnsupportedError(f"sample {sample}: must be 1 or more mutants; leave it out for all")
    device = device_or_best(device)
    chosen = op.implementations if implementation is None else (op.implementation(implementation),)
    skipped, counts, work = dict[str, str](), dict[str, int](), list[_Work]()
    for one in chosen:
        if reason := cannot_run(one, device, isolated=False):
            skipped[one.name] = reason
            continue
        mutants = mutants_of(one)
        counts[one.name] = len(mutants)
        if sample is not None and sample < len(mutants):
            at = random.Random(seed).sample(range(len(mutants)), sample)
            mutants = [mutants[each] for each in sorted(at)]
        known = {} if explained else explanations(folder_of(op.name), one.name)
        green = _unchanged(op, one, device, seed)
        limit = green.seconds * _SLOWER + _SECONDS
        work += [
            _Work(one, mutant, limit, known.get(mutant.key, ""), is_reached(mutant, green.reached))
            for mutant in mutants
        ]
    verdicts = _try_all(op, work, device, seed, jobs or usable_cores(), on_done)
    return MutationReport(
        op=op.name,
        device=device,
        seed=seed,
        mutants=counts,
        tried=tuple(map(_tried, work, verdicts)),
        skipped=skipped,
    )


@dataclass(frozen=True)
class _Work:
    """A mutant to try: within how many seconds; not where the reason is known or no line runs."""

    implementation: Implementation
    mutant: Mutant
    seconds: float
    reason: str
    reached: bool


def _unchanged(op: Op, implementation: Implementation, device: str, seed: int) -> Verdict:
    """What the check of the sources as they are says: green."""
    running_check = MutantCheck(op, implementation, None, device, seed, math.inf)
    while (verdict := running_check.poll()) is None:
        wait([running_check.waited_for])
    if verdict.by is not None:
        raise UnsupportedError(
            f"{op.name!r}: {implementation.name!r} is red without any change: {verdict.by}: "
            f"{verdict.message}; run `tercet kernel check {quote(address_of(op))}` and mend it "
            "first"
        )
    return verdict


def _try_all(
    op: Op,
    work: list[_Work],
    device: str,
    seed: int,
    jobs: int,
    on_done: Callable[[int, int], None] | None,
) -> list[Verdict]:
    verdicts = {at: _UNTRIED for at, one in enumerate(work) if one.reason or not one.reached}
    waiting = [at for at in range(len(work)) if at not in verdicts]
    running = dict[int, MutantCheck]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                at = waiting.pop(0)
                one = work[at]
                running[at] = MutantCheck(
                    op, one.implementation, one.mutant, device, seed, one.seconds
                )
            wait([running_check.waited_for for running_check in running.values()], _POLL_SECONDS)
            for at, running_check in list(running.items()):
                if (verdict := running_check.poll()) is not None:
                    verdicts[at] = verdict
                    del running[at]
                    if on_done is not None:
                        on_done(len(verdicts), len(work))
    finally:
        for running_check in running.values():
            running_check.close()
    return [verdicts[at] for at in range(len(work))]


def _tried(work: _Work, verdict: Verdict) -> Tried:
    mutant = work.mutant
    return Tried(
        implementation=work.implementation.name,
        file=mutant.file.name,
        line=mutant.line,
        function=mutant.function,
        kind=mutant.kind,
        before=mutant.before,
        after=mutant.after,
        by=verdict.by,
        message=verdict.message[:300],
        reason=work.reason,
        reached=work.reached,
        seconds=round(verdict.seconds, 2),
    )
