"""Repeated: enough equal calls to see what happens rarely, and the same in another process.

And results that are held while other calls are made.
"""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tercet.child_process import ChildError
from tercet.harness.check.contents import alike
from tercet.harness.check.judge import Verdicts
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_kind, fault_message
from tercet.harness.sandbox.session import Apart, Outcome, Session, same_results
from tercet.harness.workloads.gradients import grad_outputs_of, select_differentiable
from tercet.kernel.contract import Case, Op

# a fault of one call in a thousand is missed by 3,000 calls in 5 of 100 runs: 0.999 ** 3000
_CALLS = 3000
_BATCH = 50
# what counts calls, to do something else from some number on, counts those of a shape and a dtype
_SAME_CALLS, _SAME_SECONDS = 600, 2.0
_SECONDS = 10.0
_ALIASED = 0.5


def check_repeated(
    op: Op, session: Session, implementation: str, case: Case, seed: int
) -> list[Finding]:
    """Up to 3,000 equal calls in at most 10 seconds, and again with gradients: the same bits."""
    verdicts = Verdicts(implementation, case.name)
    prepared = op.prepare(case.make(seed))
    names = select_differentiable(op, prepared) if case.gradient else ()
    grads = grad_outputs_of(op, case, prepared, seed) if names else []
    for wanted in ((), names) if names else ((),):
        try:
            message = _repeat(session, prepared, grads if wanted else [], wanted)
        except ChildError as error:
            verdicts.add(fault_kind(error, "determinism"), fault_message(error))
            break
        verdicts.add("determinism", message)
    return verdicts.findings


def _repeat(
    session: Session,
    prepared: Mapping[str, Any],
    grads: Sequence[Tensor | None],
    wanted: Sequence[str],
    most: int = _CALLS,
    seconds: float = _SECONDS,
) -> str:
    """What is wrong with many calls, in words."""
    done, begin, first = 0, time.monotonic(), None
    while done < most and time.monotonic() - begin < seconds:
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


def check_same_calls(
    op: Op, session: Session, implementation: str, case: Case, seed: int
) -> list[Finding]:
    """600 equal calls without gradients: the same bits. Of a small case: each takes its time."""
    verdicts, prepared = Verdicts(implementation, case.name), op.prepare(case.make(seed))
    try:
        message = _repeat(session, prepared, [], (), _SAME_CALLS, _SAME_SECONDS)
        verdicts.add("determinism", message)
    except ChildError as error:
        verdicts.add(fault_kind(error, "determinism"), fault_message(error))
    return verdicts.findings


def check_held(
    op: Op, session: Session, implementation: str, case: Case, seed: int, count: int
) -> list[Finding]:
    """So many results stay as they were, though a caller holds them while others are computed.

    Of one of two contents each time, in drawn order; of some of them an alias alone is held.
    """
    verdicts = Verdicts(implementation, case.name)
    contents = [op.prepare(case.make(seed + at)) for at in range(2)]
    if not alike(*contents):
        return []
    names = select_differentiable(op, contents[0]) if case.gradient else ()
    if contents[0].get("in_place"):
        names = ()  # a gradient may take the memory of what was kept for it
    for wanted in ((), names) if names else ((),):
        try:
            message = _hold(op, session, case, seed, contents, wanted, count)
        except ChildError as error:
            verdicts.add(fault_kind(error, "stale"), fault_message(error))
            break
        verdicts.add("stale", message)
    return verdicts.findings


def _hold(
    op: Op,
    session: Session,
    case: Case,
    seed: int,
    contents: list[dict[str, Any]],
    wanted: Sequence[str],
    count: int,
) -> str:
    """What is wrong with results that are held, in words."""
    generator, held = random.Random(f"held {seed}"), list[Outcome]()
    grads = grad_outputs_of(op, case, contents[0], seed) if wanted else []
    session.begin()
    placed = session.put(contents[0])
    incoming = session.put_incoming(grads) if grads else []
    for at in range(count):
        session.write(generator.choice(contents))
        aliased = not wanted and generator.random() < _ALIASED
        found = session.forward(f"call {at}", placed, wanted, aliased=aliased)
        held.append(session.backward(f"call {at}", incoming, wanted) if wanted else found)
    for at, before in enumerate(held):
        if lost := before.unlike(session.read(f"call {at}")):
            return (
                f"{', '.join(lost)} of call {at + 1} was overwritten by one of the "
                f"{count - at - 1} calls after it"
            )
    return ""


def check_other_process(
    op: Op,
    place: Apart,
    implementation: str,
    cases: Sequence[Case],
    seed: int,
    kept: Mapping[str, Outcome],
) -> list[Finding]:
    """The results of the cases that were kept are to the bit the same in a new process."""
    findings: list[Finding] = []
    place.renew()
    session = Session(place)
    for case in [each for each in cases if each.name in kept]:
        verdicts, before = Verdicts(implementation, case.name), kept[case.name]
        prepared, names = op.prepare(case.make(seed)), tuple(before.gradients)
        try:
            session.begin()
            found = session.forward("first", session.put(prepared), names)
            if names:
                grads = grad_outputs_of(op, case, prepared, seed)
                found = session.backward("first", session.put_incoming(grads), names)
            unlike = ", ".join(before.unlike(found))
            verdicts.add("determinism", unlike and f"another process gives other bits: {unlike}")
        except ChildError as error:
            verdicts.add(fault_kind(error, "determinism"), fault_message(error))
        findings += verdicts.findings
    return findings
