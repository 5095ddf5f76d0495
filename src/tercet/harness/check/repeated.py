"""Repeated: enough equal calls to see what happens rarely, and the same in another process."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tercet.child_process import ChildError
from tercet.harness.check.judge import Verdicts
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_kind, fault_message
from tercet.harness.sandbox.session import Apart, Outcome, Session, same_results
from tercet.harness.workloads.gradients import draw_grad_outputs, select_differentiable
from tercet.kernel.contract import Case, Op

# a fault of one call in a thousand is missed by 3,000 calls in 5 of 100 runs: 0.999 ** 3000
_CALLS = 3000
_BATCH = 50
_SECONDS = 10.0
_CASES = 2


def check_repeated(
    op: Op, session: Session, implementation: str, case: Case, seed: int
) -> list[Finding]:
    """Up to 3,000 equal calls in at most 10 seconds, and again with gradients: the same bits."""
    verdicts = Verdicts(implementation, case.name)
    prepared = op.prepare(case.make(seed))
    names = select_differentiable(op, prepared) if case.gradient else ()
    for wanted in ((), names) if names else ((),):
        try:
            message = _repeat(op, session, prepared, seed, wanted)
        except ChildError as error:
            verdicts.add(fault_kind(error, "determinism"), fault_message(error))
            break
        verdicts.add("determinism", message)
    return verdicts.findings


def _repeat(
    op: Op, session: Session, prepared: Mapping[str, Any], seed: int, wanted: Sequence[str]
) -> str:
    """What is wrong with many calls, in words."""
    grads = draw_grad_outputs(op, dict(prepared), seed) if wanted else []
    done, begin, first = 0, time.monotonic(), None
    while done < _CALLS and time.monotonic() - begin < _SECONDS:
        session.begin()
        placed = session.put(prepared)
        incoming = session.put_incoming(grads) if grads else []
        session.forward("first", placed, wanted)
        for results in session.again("first", _BATCH, incoming, wanted):
            first = first or results
            done += 1
            if not all(map(same_results, first, results)):
                what = "gradients" if wanted else "bits"
                return f"call {done} of equal ones gave other {what}"
    return ""


def check_other_process(
    op: Op,
    place: Apart,
    implementation: str,
    cases: Sequence[Case],
    seed: int,
    kept: Mapping[str, Outcome],
) -> list[Finding]:
    """The outputs of a few cases in a new process are to the bit those that were kept."""
    findings: list[Finding] = []
    place.renew()
    session = Session(place)
    for case in [each for each in cases if each.name in kept][:_CASES]:
        verdicts = Verdicts(implementation, case.name)
        try:
            session.begin()
            found = session.forward("first", session.put(op.prepare(case.make(seed))))
            same = all(map(same_results, kept[case.name].outputs, found.outputs))
            verdicts.add("determinism", "" if same else "another process gives other bits")
        except ChildError as error:
            verdicts.add(fault_kind(error, "determinism"), fault_message(error))
        findings += verdicts.findings
    return findings
