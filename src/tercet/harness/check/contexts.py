"""Contexts: a case as callers call it: settings of theirs, gradients of some, several at once."""

from typing import Any

import torch
from torch import Tensor

from tercet.harness.check.case import CaseCheck
from tercet.harness.check.expected import expect
from tercet.harness.check.judge import joined, listed

Values = dict[str, Any]
_AT_ONCE = 8
_THREADS = (1, 3, 4, 9)
_DEFAULT_DTYPES = (torch.bfloat16, torch.float64)
_AUTOCAST = {"cpu": (torch.bfloat16,), "cuda": (torch.bfloat16, torch.float16)}


def check_contexts(case: CaseCheck, *, concurrent: bool) -> None:
    """As callers call it: under autocast, in inference mode, twice before the gradients, ...

    Args:
        concurrent: also from several threads at once, and after calls that failed in the middle:
            Triton's interpreter takes neither.
    """
    for mode in ("no_grad", "inference"):
        case.guard("context", f"in {mode} mode", case.judge_forward, {"mode": mode})
    made_there = {"mode": "inference", "made_in": "inference"}
    case.guard("context", "with inputs of inference mode", case.judge_forward, made_there)
    # on a GPU torch refuses each product then, whoever calls it, where a variable is not set
    if case.device == "cpu":
        repeatable = {"deterministic": True}
        case.guard("context", "with deterministic algorithms", case.judge_call, repeatable)
    for dtype in _AUTOCAST[case.device]:
        context = {"autocast": dtype, "device": case.device}
        case.guard("context", f"under autocast to {dtype}", case.judge_call, context)
    for dtype in _DEFAULT_DTYPES:
        label = f"with {dtype} as torch's default"
        case.guard("context", label, case.judge_call, {"default_dtype": dtype})
    # as where a model is made without memory
    label = "with meta as torch's default device"
    case.guard("context", label, case.judge_call, {"default_device": "meta"})
    if case.device == "cpu":
        for threads in _THREADS:
            case.guard("context", f"with {threads} threads", case.judge_call, {"threads": threads})
    if case.names:
        case.guard("context", "two calls before their gradients", _interleaved, case)
        case.guard("context", "gradients that are written to", _overwritten, case)
        _gradients_of_each_output(case)
        _some_gradients(case)
    case.guard("state", "with other settings than by default", _other_settings, case)
    case.guard("state", "a call whose caller lets go of everything", _kept, case)
    if concurrent:
        case.guard("state", "after calls that failed in the middle", _interrupted, case)
        case.guard("context", "several calls at once", _together, case)


def _other_settings(case: CaseCheck) -> str:
    """They stay as the caller had them; some change results, so these are not judged."""
    session = case.session
    session.begin()
    placed, grads = case.place(case.prepared, case.grads)
    case.call("once", placed, grads, case.names, other_settings=True)
    return listed("was changed and not put back", session.changed()["state"])


def _interleaved(case: CaseCheck) -> str:
    """Two forwards, then their gradients, the last one first."""
    session, calls = case.session, _two_calls(case)
    session.begin()
    grads = case.place_grads(case.grads)
    for call, (_, prepared) in calls.items():
        session.forward(call, session.put(prepared, f"{call} call's "), case.names)
    problems: list[str] = []
    for call, (arguments, prepared) in reversed(calls.items()):
        outcome = session.backward(call, grads or (), case.names)
        wanted = expect(case.op, arguments, case.grads, case.names)
        problems.append(case.judge(outcome, prepared, wanted))
    return joined(*problems)


def _overwritten(case: CaseCheck) -> str:
    """The gradients of a sum, once more after a caller has written to them."""
    session = case.session
    if case.arguments.get("in_place"):
        return ""
    grads = [None if each is None else torch.ones_like(each) for each in case.grads or ()]
    session.begin()
    placed, incoming = case.place(case.prepared, grads)
    first = case.call("once", placed, incoming, case.names)
    own = [
        name
        for name, each in first.gradients.items()
        if each is not None and not session.is_incoming(each)
    ]
    session.overwrite("once", own)
    outcome = session.backward("once", incoming or (), case.names)
    outcome.outputs = first.outputs
    expected = expect(case.op, case.arguments, grads, case.names)
    return case.judge(outcome, case.prepared, expected)


def _gradients_of_each_output(case: CaseCheck) -> None:
    given = [at for at, each in enumerate(case.grads or ()) if each is not None]
    for one in given if len(given) > 1 else ():
        grads = [each if at == one else None for at, each in enumerate(case.grads or ())]
        case.guard(
            "context", f"only output {one} has an incoming gradient", _with_grads, case, grads
        )


def _with_grads(case: CaseCheck, grads: list[Tensor | None]) -> str:
    expected = expect(case.op, case.arguments, grads, case.names)
    case.session.begin()
    placed, incoming = case.place(case.prepared, grads)
    outcome = case.call("once", placed, incoming, case.names)
    # where nothing comes in, there may be no gradient in place of one of zeros
    absent = {
        name
        for name, each in outcome.gradients.items()
        if each is None and not expected.gradients[name].any()
    }
    outcome.gradients = {
        name: each for name, each in outcome.gradients.items() if name not in absent
    }
    return case.judge(outcome, case.prepared, expected)


def _some_gradients(case: CaseCheck) -> None:
    """Each argument's gradient alone, and all but each."""
    names = case.names
    subsets = {(name,) for name in names} | {
        tuple(each for each in names if each != name) for name in names
    }
    for subset in sorted(subsets - {(), names}):
        label = f"only {', '.join(subset)} want{'s' * (len(subset) == 1)} a gradient"
        case.guard("context", label, _gradients_of, case, subset)


def _gradients_of(case: CaseCheck, names: tuple[str, ...]) -> str:
    return case.judge_call({}, names=names)


def _kept(case: CaseCheck) -> str:
    """Memory that callers cannot free, for kernels hold on to it."""
    session = case.session
    session.begin()
    placed, grads = case.place(case.prepared, case.grads)
    return listed("is still held", session.keep(placed, grads or (), case.names))


def _interrupted(case: CaseCheck) -> str:
    """Memory ended in the middle of calls before: settings are the caller's, results are right."""
    session = case.session
    session.begin()
    placed, grads = case.place(case.prepared, case.grads)
    session.interrupt(placed, grads or (), case.names)
    outcome = case.call("once", placed, grads, case.names)
    return case.judge(outcome, case.prepared, case.expected)


def _together(case: CaseCheck) -> str:
    session, calls = case.session, _two_calls(case)
    session.begin()
    placed = {
        f"{call} {at}": session.put(prepared, f"{call} call's {at} ")
        for at in range(_AT_ONCE // len(calls))
        for call, (_, prepared) in calls.items()
    }
    expected = {
        call: expect(case.op, arguments, None, ()) for call, (arguments, _) in calls.items()
    }
    problems: list[str] = []
    for name, outcome in zip(placed, session.together(placed), strict=True):
        call = name.split()[0]
        problems.append(case.judge(outcome, calls[call][1], expected[call]))
    return joined(*dict.fromkeys(problems))


def _two_calls(case: CaseCheck) -> dict[str, tuple[Values, Values]]:
    other = case.case.make(case.seed + 1)
    return {
        "first": (case.arguments, case.prepared),
        "second": (other, case.op.prepare(other)),
    }
