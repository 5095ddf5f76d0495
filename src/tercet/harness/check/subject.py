"""Subject: one implementation that is judged, and all that is to be run on it, in order."""

import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.harness.check.case import CaseCheck
from tercet.harness.check.configurations import Configurations, Configured
from tercet.harness.check.contexts import check_contexts
from tercet.harness.check.integration import check_integration
from tercet.harness.check.layouts import check_in_one_memory, check_layouts
from tercet.harness.check.plain_cases import (
    select_fitting,
    smallest_of_each_dtype,
    spread_plain,
)
from tercet.harness.check.repeated import (
    check_held,
    check_other_process,
    check_repeated,
    check_same_calls,
)
from tercet.harness.finding import Finding
from tercet.harness.sandbox.session import Apart, Outcome, Session
from tercet.harness.workloads.allowed import allowed
from tercet.harness.workloads.degenerate import (
    draw_alike,
    draw_equal,
    draw_forms,
    draw_least,
    draw_meeting,
)
from tercet.harness.workloads.draw import draw
from tercet.harness.workloads.drawn import Drawn
from tercet.harness.workloads.ends import draw_ends
from tercet.harness.workloads.long import draw_long
from tercet.harness.workloads.systematic import (
    draw_dtypes,
    draw_kinds,
    draw_single,
)
from tercet.kernel.contract import Case, Implementation, Op

Values = dict[str, Any]
FEW_DRAWN = 12
MORE = "(layouts, contexts)"
_LAYOUT_CASES = 8
_CONTEXT_CASES = 3
_ELEMENTS, _SLOW_ELEMENTS = 1 << 18, 1 << 14
# the interpreter runs one program after the other
_SLOW_ROWS = 520
_SHRINKS = 30
# results that a caller still has: more than a model has layers
_HELD, _HELD_INTERPRETED = 70, 20
# of the drawn cases one in so many is called with contents that differ in little, too
_NEARBY = 4


Work = list[tuple[str, Callable[[], list[Finding]]]]
More = list[Callable[[CaseCheck], None]]
"""What a drawn case is also called as, where it is green."""


class Subject:
    """Everything that is to be run on one implementation.

    Each piece of work is a name, and what runs it and gives its findings.
    """

    def __init__(
        self,
        op: Op,
        implementation: Implementation,
        session: Session,
        apart: Apart | None,
        seed: int,
        device: str,
    ) -> None:
        self._op, self._implementation, self._session = op, implementation, session
        self._apart, self._seed, self._device = apart, seed, device
        self._interpreted = device == "cpu" and _is_triton(implementation)
        self._plain, self._small = list[Case](), list[Case]()
        self._kept = dict[str, Outcome]()
        self._configurations = Configurations.of(op, implementation, device, self._interpreted)

    def on_cases(self, cases: Iterable[Case]) -> Work:
        """The op's own cases; some of them also in other layouts and contexts."""
        some = select_fitting(self._op, self._implementation, cases, self._seed)
        self._plain = spread_plain(some, _LAYOUT_CASES, short=self._interpreted)
        # interpreted, a call takes its time
        self._small = [] if self._interpreted else smallest_of_each_dtype(some)
        contexts = self._plain[:: max(1, len(self._plain) // _CONTEXT_CASES)]
        work: Work = []
        for case in some:
            judged = cache(partial(self._judged, case))
            work.append((case.name, partial(self._check, judged, case)))
            if case in self._plain:
                work.append(
                    (f"{case.name} {MORE}", partial(self._check_more, judged, case in contexts))
                )
        return work

    def on_drawn(self, count: int, *, kinds: bool) -> Work:
        """So many cases that are drawn from the seed; ends, kinds of values, long axes, forms."""
        limits = (_SLOW_ELEMENTS, _SLOW_ROWS) if self._interpreted else (_ELEMENTS, None)
        drawn = draw(self._op, self._seed, count, *limits)
        special, equal = tuple[Drawn, ...](), tuple[Drawn, ...]()
        if count and kinds:
            drawn += draw_ends(self._op, self._seed, count, *limits)
            drawn += draw_dtypes(self._op, self._seed, min(count, FEW_DRAWN), *limits)
            few = FEW_DRAWN if self._interpreted else count
            drawn += draw_single(self._op, self._seed, few, *limits)
            drawn += draw_kinds(self._op, self._seed, *limits)
            special += draw_long(self._op, self._seed, _ELEMENTS, limits[1])
            forms = count // 4 if self._interpreted else count // 2
            special += draw_forms(self._op, self._seed, min(forms, FEW_DRAWN), *limits)
            special += draw_meeting(self._op, self._seed, *limits)
            special += draw_alike(self._op, self._seed, *limits)
            special += draw_least(self._op, self._seed, *limits)
            equal = draw_equal(self._op, self._seed, *limits)
        work: Work = []
        for at, each in enumerate((*drawn, *special, *equal)):
            if self._device != "cpu" and each.layout == "far apart":
                # what lies between such rows costs a GPU memory
                each = replace(each, layout=None)
            case = each.case(self._op)
            if select_fitting(self._op, self._implementation, [case], self._seed):
                # long ones have many tiles as they are
                configured = self._configure(at, small=at < len(drawn))
                more: More = []
                if at % _NEARBY == 0 and at < len(drawn):
                    more.append(CaseCheck.nearby)
                if each in equal:
                    more.append(check_in_one_memory)
                work.append((each.name, partial(self._check_drawn, each, configured, more)))
        return work

    def _configure(self, at: int, *, small: bool) -> list[Configured]:
        """What a drawn case's launches take: half of those that may be small are."""
        seed = f"{self._seed} {at}"
        small = small and random.Random(seed).random() < 0.5
        return self._configurations.draw(seed, small=small)

    def on_held(self) -> Work:
        """Results that a caller holds while others are computed; one call many times."""
        work: Work = [("held results", partial(self._check_held, each)) for each in self._plain[:1]]
        base = self._op, self._session, self._implementation.name
        for case in self._small:
            work.append(("the same call", partial(check_same_calls, *base, case, self._seed)))
        return work

    def on_all_together(self) -> Work:
        """What torch does with the op, many equal calls, and another process."""
        name, work = self._implementation.name, list[Any]()
        integration = partial(
            check_integration, self._op, self._session, name, self._plain, self._seed,
            self._device, self._implementation.capturable,
        )  # fmt: skip
        work.append(("in torch", integration))
        if self._apart is not None and self._plain:
            base = self._op, self._session, name, self._plain[0], self._seed
            work.append(("many calls", partial(check_repeated, *base)))
            other = partial(
                check_other_process, self._op, self._apart, name, self._plain, self._seed,
                self._kept,
            )  # fmt: skip
            work.append(("another process", other))
        return work

    def _check(self, judged: Callable[[], CaseCheck], case: Case) -> list[Finding]:
        one = judged()
        outcome = one.run(_native(self._op, case.make(self._seed)))
        if outcome is not None and case in self._plain:
            self._kept[case.name] = outcome
        return list(one.findings)

    def _check_held(self, case: Case) -> list[Finding]:
        """Where the case itself gave results."""
        if case.name not in self._kept:
            return []
        count = _HELD_INTERPRETED if self._interpreted else _HELD
        name = self._implementation.name
        return check_held(self._op, self._session, name, case, self._seed, count)

    def _check_more(self, judged: Callable[[], CaseCheck], contexts: bool) -> list[Finding]:
        """Where the case itself is green."""
        case, before = judged(), len(judged().findings)
        if case.passed:
            check_layouts(case)
            case.nearby()
            if contexts:
                # two threads in Triton's interpreter get in each other's way
                check_contexts(case, concurrent=not self._interpreted)
        return case.findings[before:]

    def _check_drawn(self, drawn: Drawn, configured: list[Configured], more: More) -> list[Finding]:
        """A drawn case; where it is red, the smallest one found that is red too."""
        findings, tries = self._run(drawn, configured, more), 0
        if not is_red(findings):
            return findings
        found = drawn
        while tries < _SHRINKS:
            for other in found.smaller():
                tries += 1
                kept = allowed(self._op, other) if tries <= _SHRINKS else None
                if kept is not None and is_red(less := self._run(kept, configured, more)):
                    found, findings = kept, less
                    break
            else:
                break
        return findings

    def _run(self, drawn: Drawn, configured: list[Configured], more: More) -> list[Finding]:
        case = drawn.case(self._op)
        words = [f"{option}={value}" for each in configured for option, value in each[3].items()]
        named = replace(case, name=" ".join((case.name, *words)))
        # interpreted, every call of the many cases takes its time
        judged = self._judged(named, configured, repeats=1 if self._interpreted else 2)
        judged.run(None)
        for each in more if judged.passed else ():
            each(judged)
        return judged.findings

    def _judged(
        self, case: Case, configured: Sequence[Configured] = (), repeats: int = 2
    ) -> CaseCheck:
        return CaseCheck(
            self._op, self._session, self._implementation.name, case, self._seed, self._device,
            configured, repeats,
        )  # fmt: skip


def is_red(findings: Iterable[Finding]) -> bool:
    """Whether one of them is."""
    return any(not finding.passed for finding in findings)


def _is_triton(implementation: Implementation) -> bool:
    """A candidate's language is not known before its source is read."""
    path = Path(implementation.module)
    if path.suffix == ".py":
        return "triton" in path.read_text(encoding="utf-8", errors="replace")
    return implementation.language == "triton"


def _native(op: Op, arguments: Values) -> list[Tensor] | None:
    """What plain torch gives in the op's own dtype, to set the error beside."""
    if not op.baselines or op.baselines[0].package is not None:
        return None
    plain = op.baselines[0]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of dtypes that it has no fused kernel for
            result = plain.load()(**plain.preparation(op)(arguments))
    except (RuntimeError, IndexError, ValueError, NotImplementedError):  # sizes of 0, half on a CPU
        return None
    return [result] if isinstance(result, Tensor) else list(result)
