"""Case: one implementation on one input: called, called again, in other layouts, in other contexts.

Whatever is run, the same judgement is made of it: its results, what was written to, and what was
changed. Nothing is taken from the guest's word that the judge can see in its own memory.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from tercet.child_process import ChildError
from tercet.errors import UnsupportedError
from tercet.harness.check.configurations import Configured
from tercet.harness.check.contents import (
    alike,
    change_one,
    parts_of,
    swap_rows,
    unchanged,
    with_part,
)
from tercet.harness.check.expected import Expected, expect
from tercet.harness.check.in_one_memory import WAYS, Way, part_of, put_side_by_side
from tercet.harness.check.judge import Problem, Verdicts, judge_outcome, listed
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_kind, fault_message
from tercet.harness.sandbox.session import Outcome, Session
from tercet.harness.workloads.allowed import accepts
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.drawn import split_rows
from tercet.harness.workloads.gradients import grad_outputs_of, select_differentiable
from tercet.harness.workloads.layouts import LAYOUTS, lay_out
from tercet.kernel.contract import Case, Op

Values = dict[str, Any]
_AT_ONCE = 8
_THREADS = (1, 3, 4, 9)
_DEFAULT_DTYPES = (torch.bfloat16, torch.float64)
_AUTOCAST = {"cpu": (torch.bfloat16,), "cuda": (torch.bfloat16, torch.float16)}


class CaseCheck:
    """One case of one implementation.

    Args:
        op: with the tolerances and the layout of the implementation.
        session: where it runs.
        implementation, case, seed: what, on what.
        device: "cpu" or "cuda".
        configurations: (op, implementation, direction, options) that launches take, in place of
            those of the tuned tables.
        repeats: how often it is called once more, at least once: results are the same to the bit.
    """

    def __init__(
        self,
        op: Op,
        session: Session,
        implementation: str,
        case: Case,
        seed: int,
        device: str,
        configurations: Sequence[Configured] = (),
        repeats: int = 2,
    ) -> None:
        self._op, self._session, self._case, self._device = op, session, case, device
        self._repeats = repeats
        self._configured = {"configurations": list(configurations)} if configurations else {}
        self._verdicts = Verdicts(implementation, case.name)
        self._arguments = case.make(seed)
        self._prepared = op.prepare(self._arguments)
        self._names = select_differentiable(op, self._prepared) if case.gradient else ()
        self._grads = grad_outputs_of(op, case, self._prepared, seed) if self._names else None
        self._expected = expect(op, self._arguments, self._grads, self._names)
        self._seed, self._direction = seed, "forward"

    @property
    def findings(self) -> list[Finding]:
        """What was found until now."""
        return self._verdicts.findings

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong until now."""
        return all(finding.passed for finding in self.findings)

    def run(self, natives: list[Tensor] | None) -> Outcome | None:
        """The case itself: its contents, others at the same addresses, the first ones again."""
        try:
            return self._run(natives)
        except ChildError as error:
            kind = fault_kind(error, self._direction)
            self._verdicts.add(kind, self._in_words(error))
            if kind == "backward":
                # its results were not judged, and may be the cause
                self._guarded("forward", "without gradients", self._forward_only, {})
            return None

    def lay_out(self) -> None:
        """The same values in other layouts, and rows that repeat."""
        deep = any(isinstance(each, Tensor) and each.dim() > 2 for each in self._prepared.values())
        for name in LAYOUTS:
            if name in ("heads first", "sliced") and not deep:
                continue
            # what lies between such rows costs a GPU memory
            if name == "far apart" and self._device != "cpu":
                continue
            check = "misaligned" if name == "misaligned" else "strided"
            self._guarded(check, f"{name} inputs", self._laid_out, name)
        self._guarded("strided", "expanded inputs", self._expanded)
        self.lay_in_one_memory(1)
        if self._names:
            self._guarded(
                "strided", "incoming gradients expanded along rows", self._expanded_columns
            )

    def lay_in_one_memory(self, most: int | None = None) -> None:
        """Two inputs that are alike as one tensor, and as parts of one; so many pairs at most."""
        if self._arguments.get("in_place"):
            return
        for one, other in self._alike()[:most]:
            for words, way in WAYS.items():
                label = f"{other} {words} {one}"
                self._guarded("strided", label, self._in_one_memory, way, one, other)

    def in_contexts(self, *, concurrent: bool) -> None:
        """As callers call it: under autocast, in inference mode, twice before the gradients, ...

        Args:
            concurrent: also from several threads at once.
        """
        for mode in ("no_grad", "inference"):
            self._guarded("context", f"in {mode} mode", self._forward_only, {"mode": mode})
        for dtype in _AUTOCAST[self._device]:
            context = {"autocast": dtype, "device": self._device}
            self._guarded("context", f"under autocast to {dtype}", self._whole, context)
        for dtype in _DEFAULT_DTYPES:
            label = f"with {dtype} as torch's default"
            self._guarded("context", label, self._whole, {"default_dtype": dtype})
        if self._device == "cpu":
            for threads in _THREADS:
                self._guarded(
                    "context", f"with {threads} threads", self._whole, {"threads": threads}
                )
        if self._names:
            self._guarded("context", "two calls before their gradients", self._interleaved)
            self._guarded("context", "gradients that are written to", self._overwritten)
            self._gradients_of_each_output()
            self._some_gradients()
        self._guarded("state", "with other settings than by default", self._other_settings)
        self._guarded("state", "a call whose caller lets go of everything", self._kept)
        if concurrent:
            self._guarded("context", "several calls at once", self._together)

    def nearby(self) -> None:
        """Contents that differ from the first in little, at the same addresses.

        In one element, in two rows changing places, or in one part of a packed weight.
        """
        for label, change in (
            ("one other element", change_one),
            ("two rows that changed places", swap_rows),
        ):
            self._guarded("stale", label, self._changed_contents, change)
        other = self._case.make(self._seed + 1)
        for name, value in self._arguments.items():
            for part in parts_of(value):
                label = f"another {part} of {name}"
                self._guarded("stale", label, self._changed_part, name, part, other[name])

    def _run(self, natives: list[Tensor] | None) -> Outcome:
        session, names = self._session, self._names
        session.begin()
        placed, grads = self._place(self._prepared, self._grads)
        first = self._call("first", placed, grads, names)
        right = self._add(judge_outcome(self._op, self._prepared, first, self._expected, natives))
        written, overwritten = session.written(), list[str]()
        other = self._case.make(self._seed + 1)
        prepared = self._op.prepare(other)
        if alike(self._prepared, prepared):
            session.write(prepared)
            second = self._call("second", placed, grads, names)
            wanted = expect(self._op, other, self._grads, names)
            self._add_second(judge_outcome(self._op, prepared, second, wanted), right)
            written += session.written()
            overwritten = first.unlike(session.read("first"))
            session.write(self._prepared)
        unstable = list[str]()
        for at in range(self._repeats):
            # on a GPU programs run in any order
            last = {"backwards": True} if at == self._repeats - 1 else {}
            again = self._call(f"again {at}", placed, grads, names, **last)
            # of several NaN a product has one or the other, by how its operands lie
            unstable += first.unlike(again, any_nan=True)
        self._add_surroundings(first, written, overwritten, unstable)
        return first

    def _add_surroundings(
        self, first: Outcome, written: list[str], overwritten: list[str], unstable: list[str]
    ) -> None:
        session, add = self._session, self._verdicts.add
        views = [
            f"output {at}" for at, each in enumerate(first.outputs) if session.shares(each)
        ] + [
            f"the gradient of {name}"
            for name, each in first.gradients.items()
            if each is not None and session.shares(each)
        ]
        changed = session.changed()
        imported = listed("was changed by importing it", changed["imported"])
        state = listed("was changed and not put back", changed["state"])
        add("guard", "; ".join(session.broken()))
        add("inputs", _joined(
            listed("was written to", written), listed("shares memory with an input", views)
        ))  # fmt: skip
        add("determinism", listed("differs between equal calls", unstable))
        add("stale", listed("was overwritten by a later call", overwritten))
        add("state", _joined(state, imported))

    def _laid_out(self, name: str) -> str:
        try:
            return self._whole({}, *self._lie(name))
        except MemoryError:
            return ""  # a small machine has no room for rows that lie far apart

    def _lie(self, name: str) -> tuple[Values, list[Tensor | None] | None]:
        """Arguments and incoming gradients in that layout."""
        specs = {spec.name for spec in self._op.of_role("input")}
        laid = {
            key: lay_out(name, value, at) if key in specs else value
            for at, (key, value) in enumerate(self._prepared.items())
        }
        grads = self._grads and [
            lay_out(name, each, len(laid) + at) for at, each in enumerate(self._grads)
        ]
        return laid, grads

    def _alike(self) -> list[tuple[str, str]]:
        """Every two inputs of one shape and dtype, in either order; the seed's choice first.

        Finite ones: where one may hold NaN, as of rows that are left out, another may not.
        """
        names = [
            name
            for name in sorted(self._free())
            if isinstance(value := self._arguments.get(name), Tensor)
            and value.is_floating_point()
            and bool(value.float().isfinite().all())
            and unchanged(value, self._prepared.get(name))
        ]
        pairs = [
            (one, other)
            for one, other in permutations(names, 2)
            if self._prepared[one].shape == self._prepared[other].shape
            and self._prepared[one].dtype == self._prepared[other].dtype
            and self._prepared[one].dim()
        ]
        first = self._seed % max(len(pairs), 1)
        return [*pairs[first:], *pairs[:first]]

    def _in_two_axes(self) -> Values:
        """Arguments whose leading axis is two, where the op takes such and their number is even."""
        split = split_rows(self._op, self._arguments, 2)
        return split if accepts(self._op, self._op.prepare(split)) else self._arguments

    def _in_one_memory(self, way: Way, one: str, other: str) -> str:
        """Callers give a tensor twice, or two parts of one: what lies there is not one for it."""
        arguments, grads = self._arguments, self._grads
        if way is put_side_by_side:
            # rows of which others follow do not fall into one axis, if there are two
            arguments, grads = self._in_two_axes(), None
        prepared = self._op.prepare(arguments)
        found = way(prepared[one], prepared[other])
        if found is None:
            return ""
        self._session.begin()
        placed, incoming = self._place(prepared, grads)
        (whole,) = self._session.put({f"{one} and {other}": found.whole}).values()
        laid = {one: found.one, other: found.other}
        for name, part in laid.items():
            placed[name] = part_of(whole, part)
        names = () if grads is None else self._names
        outcome = self._call("once", placed, incoming, names)
        expected = expect(self._op, {**arguments, **laid}, grads, names)
        return self._judged(outcome, {**prepared, **laid}, expected)

    def _expanded(self) -> str:
        """Every row the first one, with a stride of 0: gradients of a sum come so."""
        free = self._free()
        same = {
            name
            for name, value in self._arguments.items()
            if name in free
            and isinstance(value, Tensor)
            and value.dim() > 1
            and isinstance(self._prepared.get(name), Tensor)
            and unchanged(value, self._prepared[name])
        }
        if not same:
            return ""
        arguments = {
            name: value[:1].expand_as(value) if name in same else value
            for name, value in self._arguments.items()
        }
        prepared = {**self._prepared, **{name: arguments[name] for name in same}}
        grads = self._grads and [
            each[:1].expand_as(each) if each is not None and each.dim() > 1 else each
            for each in self._grads
        ]
        return self._whole({}, prepared, grads, expect(self._op, arguments, grads, self._names))

    def _expanded_columns(self) -> str:
        """Incoming gradients that are one number a row, as of a sum or a mean along rows."""
        grads = [
            each[..., :1].expand_as(each) if each is not None and each.dim() else each
            for each in self._grads or ()
        ]
        expected = expect(self._op, self._arguments, grads, self._names)
        return self._whole({}, None, grads, expected)

    def _whole(
        self,
        context: Values,
        prepared: Values | None = None,
        grads: Sequence[Tensor | None] | None = None,
        expected: Expected | None = None,
        names: Sequence[str] | None = None,
    ) -> str:
        """One call with its gradients, judged: what is wrong, in words."""
        prepared = self._prepared if prepared is None else prepared
        grads = self._grads if grads is None else grads
        names = self._names if names is None else names
        self._session.begin()
        placed, placed_grads = self._place(prepared, grads)
        outcome = self._call("once", placed, placed_grads, names, **context)
        return self._judged(outcome, prepared, expected or self._expected)

    def _forward_only(self, context: Values) -> str:
        return self._whole(context, names=())

    def _other_settings(self) -> str:
        """They stay as the caller had them; some change results, so these are not judged."""
        session = self._session
        session.begin()
        placed, grads = self._place(self._prepared, self._grads)
        self._call("once", placed, grads, self._names, other_settings=True)
        return listed("was changed and not put back", session.changed()["state"])

    def _judged(self, outcome: Outcome, prepared: Values, expected: Expected) -> str:
        """The one judgement, and what was written to, in words."""
        session = self._session
        problems = [each.message for each in judge_outcome(self._op, prepared, outcome, expected)]
        results = [*outcome.outputs, *(each for each in outcome.gradients.values() if each)]
        problems += [
            *session.broken(),
            listed("was written to", session.written()),
            "a result shares memory with an input" if any(map(session.shares, results)) else "",
            listed("was changed and not put back", session.changed()["state"]),
        ]
        return _joined(*problems)

    def _interleaved(self) -> str:
        """Two forwards, then their gradients, the last one first."""
        session, calls = self._session, self._two_calls()
        session.begin()
        grads = self._place_grads(self._grads)
        for call, (_, prepared) in calls.items():
            session.forward(call, session.put(prepared, f"{call} call's "), self._names)
        problems: list[str] = []
        for call, (arguments, prepared) in reversed(calls.items()):
            outcome = session.backward(call, grads or (), self._names)
            wanted = expect(self._op, arguments, self._grads, self._names)
            problems.append(self._judged(outcome, prepared, wanted))
        return _joined(*problems)

    def _overwritten(self) -> str:
        """The gradients of a sum, once more after a caller has written to them."""
        session = self._session
        if self._arguments.get("in_place"):
            return ""
        grads = [None if each is None else torch.ones_like(each) for each in self._grads or ()]
        session.begin()
        placed, incoming = self._place(self._prepared, grads)
        first = self._call("once", placed, incoming, self._names)
        own = [
            name
            for name, each in first.gradients.items()
            if each is not None and not session.is_incoming(each)
        ]
        session.overwrite("once", own)
        outcome = session.backward("once", incoming or (), self._names)
        outcome.outputs = first.outputs
        expected = expect(self._op, self._arguments, grads, self._names)
        return self._judged(outcome, self._prepared, expected)

    def _gradients_of_each_output(self) -> None:
        given = [at for at, each in enumerate(self._grads or ()) if each is not None]
        for one in given if len(given) > 1 else ():
            grads = [each if at == one else None for at, each in enumerate(self._grads or ())]
            self._guarded(
                "context", f"only output {one} has an incoming gradient", self._with_grads, grads
            )

    def _with_grads(self, grads: list[Tensor | None]) -> str:
        expected = expect(self._op, self._arguments, grads, self._names)
        self._session.begin()
        placed, incoming = self._place(self._prepared, grads)
        outcome = self._call("once", placed, incoming, self._names)
        # where nothing comes in, there may be no gradient in place of one of zeros
        absent = {
            name
            for name, each in outcome.gradients.items()
            if each is None and not expected.gradients[name].any()
        }
        outcome.gradients = {
            name: each for name, each in outcome.gradients.items() if name not in absent
        }
        return self._judged(outcome, self._prepared, expected)

    def _some_gradients(self) -> None:
        """Each argument's gradient alone, and all but each."""
        names = self._names
        subsets = {(name,) for name in names} | {
            tuple(each for each in names if each != name) for name in names
        }
        for subset in sorted(subsets - {(), names}):
            label = f"only {', '.join(subset)} want{'s' * (len(subset) == 1)} a gradient"
            self._guarded("context", label, self._gradients_of, subset)

    def _gradients_of(self, names: tuple[str, ...]) -> str:
        return self._whole({}, names=names)

    def _kept(self) -> str:
        """Memory that callers cannot free, for kernels hold on to it."""
        session = self._session
        session.begin()
        placed, grads = self._place(self._prepared, self._grads)
        return listed("is still held", session.keep(placed, grads or (), self._names))

    def _together(self) -> str:
        session, calls = self._session, self._two_calls()
        session.begin()
        placed = {
            f"{call} {at}": session.put(prepared, f"{call} call's {at} ")
            for at in range(_AT_ONCE // len(calls))
            for call, (_, prepared) in calls.items()
        }
        expected = {
            call: expect(self._op, arguments, None, ()) for call, (arguments, _) in calls.items()
        }
        problems: list[str] = []
        for name, outcome in zip(placed, session.together(placed), strict=True):
            call = name.split()[0]
            problems.append(self._judged(outcome, calls[call][1], expected[call]))
        return _joined(*dict.fromkeys(problems))

    def _free(self) -> set[str]:
        """Inputs whose contents may change without others that are made of them."""
        inputs = {spec.name for spec in self._op.of_role("input")}
        return inputs - tied_arguments(self._op, self._arguments)

    def _two_calls(self) -> dict[str, tuple[Values, Values]]:
        other = self._case.make(self._seed + 1)
        return {
            "first": (self._arguments, self._prepared),
            "second": (other, self._op.prepare(other)),
        }

    def _changed_contents(self, change: Any) -> str:
        """Right for contents that are nearly the ones before, at the same addresses."""
        specs = self._free()
        arguments, prepared = dict(self._arguments), dict(self._prepared)
        for name, value in self._arguments.items():
            if name in specs and isinstance(value, Tensor) and unchanged(value, prepared.get(name)):
                changed = change(value, self._seed)
                if changed is not None:
                    arguments[name] = prepared[name] = changed
        if all(prepared[name] is value for name, value in self._prepared.items()):
            return ""
        return self._after_others(arguments, prepared)

    def _changed_part(self, name: str, part: str, other: Any) -> str:
        arguments = {**self._arguments, name: with_part(self._arguments[name], part, other)}
        prepared = self._op.prepare(arguments)
        return self._after_others(arguments, prepared) if alike(self._prepared, prepared) else ""

    def _after_others(self, arguments: Values, prepared: Values) -> str:
        """Right where the case's own contents were a call before."""
        session = self._session
        session.begin()
        placed, grads = self._place(self._prepared, self._grads)
        self._call("before", placed, grads, self._names)
        session.write(prepared)
        outcome = self._call("after", placed, grads, self._names)
        expected = expect(self._op, arguments, self._grads, self._names)
        return self._judged(outcome, prepared, expected)

    def _place(
        self, prepared: Values, grads: Sequence[Tensor | None] | None
    ) -> tuple[Values, list[Any] | None]:
        return self._session.put(prepared), self._place_grads(grads)

    def _place_grads(self, grads: Sequence[Tensor | None] | None) -> list[Any] | None:
        return None if grads is None else self._session.put_incoming(grads)

    def _call(
        self,
        call: str,
        placed: Values,
        grads: list[Any] | None,
        names: Sequence[str],
        **context: Any,
    ) -> Outcome:
        wanted, context = names if grads is not None else (), {**self._configured, **context}
        self._direction = "forward"
        outcome = self._session.forward(call, placed, wanted, **context)
        if not wanted or grads is None:
            return outcome
        promises = outcome.promises
        # autocast is for the forward pass, as torch's own documentation says
        kept = {key: value for key, value in context.items() if key not in ("autocast", "device")}
        self._direction = "backward"
        outcome = self._session.backward(call, grads, wanted, **kept)
        outcome.promises += promises
        return outcome

    def _guarded(self, check: str, label: str, run: Any, *arguments: Any) -> None:
        try:
            message = run(*arguments)
        except ChildError as error:
            message = self._in_words(error)
        self._verdicts.add(check, f"{label}: {message}" if message else "")

    def _in_words(self, error: ChildError) -> str:
        """What is wrong with a call that failed: nothing where it may refuse its inputs."""
        refused = self._case.refusable and UnsupportedError.__name__ in error.classes
        return "" if refused else fault_message(error)

    def _add(self, problems: list[Problem]) -> bool:
        for each in problems:
            self._verdicts.add(each.check, each.message, each.errors)
        return not any(each.message for each in problems)

    def _add_second(self, problems: list[Problem], first_right: bool) -> None:
        """The second contents at the same addresses; wrong only there: something was kept."""
        wrong = [each for each in problems if each.message]
        if wrong and first_right:
            message = _joined(*(each.message for each in wrong))
            self._verdicts.add(
                "stale", f"right at first, wrong for new contents of the same memory: {message}"
            )
        else:
            self._add(wrong)


def _joined(*messages: str) -> str:
    return "; ".join(message for message in messages if message)
