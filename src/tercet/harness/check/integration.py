"""Check of integration: runs opcheck, torch.compile, CUDA graphs and streams on a few cases."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from tercet.child_process import ChildError
from tercet.harness.check.contents import alike
from tercet.harness.check.judge import Verdicts, listed
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_kind, fault_message
from tercet.harness.sandbox.session import Outcome, Session
from tercet.harness.workloads.gradients import draw_grad_outputs, select_differentiable
from tercet.kernel.contract import Case, Op

Values = dict[str, Any]
_CASES = 2


def check_integration(
    op: Op,
    session: Session,
    implementation: str,
    cases: Sequence[Case],
    seed: int,
    device: str,
    capturable: bool,
) -> list[Finding]:
    """opcheck, torch.compile and, on a GPU, graphs and streams, on a few of these cases."""
    findings = list[Finding]()
    for case in _of_each_dtype(cases)[:_CASES]:
        verdicts = Verdicts(implementation, case.name)
        prepared, other = (op.prepare(case.make(seed + at)) for at in (0, 1))
        names = select_differentiable(op, prepared)
        grad_outputs = draw_grad_outputs(op, prepared, seed)
        base = {"first": prepared, "wanted": list(names)}
        calls: dict[str, Callable[[], str]] = {
            "opcheck": partial(session.integrate, "opcheck", device, **base),
            "compile": partial(_compiled, session, prepared, grad_outputs, names),
        }
        if device == "cuda" and alike(prepared, other):
            both = {**base, "second": other, "grad_outputs": grad_outputs}
            calls["stream"] = partial(session.integrate, "compare_streamed", device, **both)
            if capturable:
                calls["graph"] = partial(session.integrate, "compare_captured", device, **both)
        for name, call in calls.items():
            try:
                verdicts.add(name, call())
            except ChildError as error:
                verdicts.add(fault_kind(error, name), fault_message(error))
        findings += verdicts.findings
    return findings


def _compiled(
    session: Session, prepared: Values, grad_outputs: Sequence[Tensor | None], names: Sequence[str]
) -> str:
    """Whether torch.compile(fullgraph=True) gives the bits of eager, forward and backward."""
    outcomes: list[Outcome] = []
    for compiled in (False, True):
        session.begin()
        places = session.put(prepared)
        grads = session.put_incoming(grad_outputs)
        outcome = session.forward("once", places, names, compiled=compiled)
        if names:
            outcome = session.backward("once", grads, names)
        outcomes.append(outcome)
    return listed("differs under torch.compile", outcomes[0].unlike(outcomes[1]))


def _of_each_dtype(cases: Sequence[Case]) -> list[Case]:
    """The cases, first one of each dtype that occurs: autograd hides a gradient of a wrong one."""
    first: dict[object, Case] = {}
    for case in cases:
        tensors = (value for value in case.make(0).values() if isinstance(value, Tensor))
        first.setdefault(next((x.dtype for x in tensors), None), case)
    return [*first.values(), *(case for case in cases if case not in first.values())]
