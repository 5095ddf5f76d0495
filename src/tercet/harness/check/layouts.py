"""Layouts: a case's values as they may lie in memory, each input's own way or two in one memory."""

from itertools import combinations
from typing import Any

from torch import Tensor

from tercet.harness.check.case import CaseCheck
from tercet.harness.check.contents import unchanged
from tercet.harness.check.expected import expect
from tercet.harness.workloads.allowed import accepts
from tercet.harness.workloads.drawn import split_rows
from tercet.harness.workloads.gradients import grad_outputs_of
from tercet.harness.workloads.in_one_memory import SIDE_BY_SIDE, WAYS, Way, part_of
from tercet.harness.workloads.layouts import LAYOUTS, lay_out

Values = dict[str, Any]


def check_layouts(case: CaseCheck) -> None:
    """The same values in other layouts, and rows that repeat."""
    deep = any(isinstance(each, Tensor) and each.dim() > 2 for each in case.prepared.values())
    for name in LAYOUTS:
        if name in ("heads first", "sliced") and not deep:
            continue
        # what lies between such rows costs a GPU memory
        if name == "far apart" and case.device != "cpu":
            continue
        check = "misaligned" if name == "misaligned" else "strided"
        case.guard(check, f"{name} inputs", _laid_out, case, name)
    case.guard("strided", "expanded inputs", _expanded, case)
    check_in_one_memory(case, 1)
    if case.names:
        case.guard("strided", "incoming gradients expanded along rows", _expanded_columns, case)


def check_in_one_memory(case: CaseCheck, most: int | None = None) -> None:
    """Two inputs that are alike as one tensor, and as parts of one; so many pairs at most."""
    if case.arguments.get("in_place"):
        return
    for one, other in _alike(case)[:most]:
        for words, way in WAYS.items():
            label = f"{other} {words} {one}"
            case.guard("strided", label, _in_one_memory, case, way, one, other)


def _laid_out(case: CaseCheck, name: str) -> str:
    try:
        return case.judge_call({}, *_lie(case, name))
    except MemoryError:
        return ""  # a small machine has no room for rows that lie far apart


def _lie(case: CaseCheck, name: str) -> tuple[Values, list[Tensor | None] | None]:
    """Arguments and incoming gradients in that layout."""
    specs = {spec.name for spec in case.op.of_role("input")}
    laid = {
        key: lay_out(name, value, at) if key in specs else value
        for at, (key, value) in enumerate(case.prepared.items())
    }
    grads = case.grads and [
        lay_out(name, each, len(laid) + at) for at, each in enumerate(case.grads)
    ]
    return laid, grads


def _alike(case: CaseCheck) -> list[tuple[str, str]]:
    """Every two inputs of one shape and dtype, in the seed's order; the seed's choice first.

    Finite ones: where one may hold NaN, as of rows that are left out, another may not.
    """
    names = [
        name
        for name in sorted(case.free_inputs())
        if isinstance(value := case.arguments.get(name), Tensor)
        and value.is_floating_point()
        and bool(value.float().isfinite().all())
        and unchanged(value, case.prepared.get(name))
    ]
    pairs = [
        (one, other)
        for one, other in combinations(names[:: -1 if case.seed % 2 else 1], 2)
        if case.prepared[one].shape == case.prepared[other].shape
        and case.prepared[one].dtype == case.prepared[other].dtype
        and case.prepared[one].dim()
    ]
    first = case.seed // 2 % max(len(pairs), 1)
    return [*pairs[first:], *pairs[:first]]


def _in_two_axes(case: CaseCheck, one: str, other: str) -> Values:
    """Arguments whose leading axis is two, where the op takes such and their number is even.

    And where these two inputs are still of one shape: of one alone the leading axis may be rows.
    """
    split = split_rows(case.op, case.arguments, 2)
    prepared = case.op.prepare(split)
    alike = prepared[one].shape == prepared[other].shape
    return split if alike and accepts(case.op, prepared) else case.arguments


def _in_one_memory(case: CaseCheck, way: Way, one: str, other: str) -> str:
    """Callers give a tensor twice, or two parts of one: what lies there is not one for it."""
    arguments, grads = case.arguments, case.grads
    if way in SIDE_BY_SIDE:
        # rows of which others follow do not fall into one axis, if there are two
        arguments = _in_two_axes(case, one, other)
    prepared = case.op.prepare(arguments)
    if arguments is not case.arguments and grads is not None:
        grads = grad_outputs_of(case.op, case.case, prepared, case.seed)
    found = way(prepared[one], prepared[other])
    if found is None:
        return ""
    case.session.begin()
    placed, incoming = case.place(prepared, grads)
    (whole,) = case.session.put({f"{one} and {other}": found.whole}).values()
    laid = {one: found.one, other: found.other}
    for name, part in laid.items():
        placed[name] = part_of(whole, part)
    names = () if grads is None else case.names
    outcome = case.call("once", placed, incoming, names)
    expected = expect(case.op, {**arguments, **laid}, grads, names)
    return case.judge(outcome, {**prepared, **laid}, expected)


def _expanded(case: CaseCheck) -> str:
    """Every row the first one, with a stride of 0: gradients of a sum come so."""
    free = case.free_inputs()
    same = {
        name
        for name, value in case.arguments.items()
        if name in free
        and isinstance(value, Tensor)
        and value.dim() > 1
        and isinstance(case.prepared.get(name), Tensor)
        and unchanged(value, case.prepared[name])
    }
    if not same:
        return ""
    arguments = {
        name: value[:1].expand_as(value) if name in same else value
        for name, value in case.arguments.items()
    }
    prepared = {**case.prepared, **{name: arguments[name] for name in same}}
    grads = case.grads and [
        each[:1].expand_as(each) if each is not None and each.dim() > 1 else each
        for each in case.grads
    ]
    return case.judge_call({}, prepared, grads, expect(case.op, arguments, grads, case.names))


def _expanded_columns(case: CaseCheck) -> str:
    """Incoming gradients that are one number a row, as of a sum or a mean along rows."""
    grads = [
        each[..., :1].expand_as(each) if each is not None and each.dim() else each
        for each in case.grads or ()
    ]
    expected = expect(case.op, case.arguments, grads, case.names)
    return case.judge_call({}, None, grads, expected)
