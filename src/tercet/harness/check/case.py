"""Case: one implementation on one input: called, called again, with contents that differ in little.

Whatever is run, here or in other layouts and contexts, the same judgement is made of it: its
results, what was written to, and what was changed. Nothing is taken from the guest's word that the
judge can see in its own memory.
"""

from collections.abc import Sequence
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
from tercet.harness.check.expected import Expected, UnlikeFakeError, expect
from tercet.harness.check.judge import Problem, Verdicts, joined, judge_outcome, listed
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_kind, fault_message
from tercet.harness.sandbox.session import Outcome, Session
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.gradients import grad_outputs_of, select_differentiable
from tercet.kernel.contract import Case, Op

Values = dict[str, Any]


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

    Attributes:
        op, session, case, seed, device: as given.
        arguments, prepared: of the reference, of the op.
        names: the arguments that have a gradient here.
        grads: the incoming gradients; None where there is no gradient.
        expected: by the reference.
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
        self.op, self.session, self.case, self.device = op, session, case, device
        self._repeats = repeats
        self._configured = {"configurations": list(configurations)} if configurations else {}
        self._verdicts = Verdicts(implementation, case.name)
        self.arguments = case.make(seed)
        self.prepared = op.prepare(self.arguments)
        self.names = select_differentiable(op, self.prepared) if case.gradient else ()
        self.grads = grad_outputs_of(op, case, self.prepared, seed) if self.names else None
        try:
            self.expected = expect(op, self.arguments, self.grads, self.names)
        except UnlikeFakeError as error:
            # what the kernel gives is still held to either
            self._verdicts.add("opcheck", str(error))
            self.names, self.grads = (), None
            self.expected = expect(op, self.arguments, None, ())
        self.seed, self._direction = seed, "forward"

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
            if error.kind == "raised":
                # whoever catches what it raised goes on with what it left
                changed = self.session.changed()["state"]
                self._verdicts.add("state", listed("was changed and not put back", changed))
            if kind == "backward":
                # its results were not judged, and may be the cause
                self.guard("forward", "without gradients", self.judge_forward, {})
            return None

    def nearby(self) -> None:
        """Contents that differ from the first in little, at the same addresses.

        In one element, in two rows changing places, in one part of a packed weight, or in numbers
        that are not read.
        """
        for label, change in (
            ("one other element", change_one),
            ("two rows that changed places", swap_rows),
        ):
            self.guard("stale", label, self._changed_contents, change)
        for name, instead in self.op.unread.items():
            value = self.prepared.get(name)
            if isinstance(value, Tensor) and (
                instead is None or self.prepared[instead] is not None
            ):
                label = f"{name}, which is not read, all NaN"
                anything = {**self.prepared, name: torch.full_like(value, torch.nan)}
                self.guard("context", label, self.judge_call, {}, anything)
        other = self.case.make(self.seed + 1)
        for name, value in self.arguments.items():
            for part in parts_of(value):
                label = f"another {part} of {name}"
                self.guard("stale", label, self._changed_part, name, part, other[name])

    def _run(self, natives: list[Tensor] | None) -> Outcome:
        session, names = self.session, self.names
        session.begin()
        placed, grads = self.place(self.prepared, self.grads)
        first = self.call("first", placed, grads, names)
        right = self._add(judge_outcome(self.op, self.prepared, first, self.expected, natives))
        written, overwritten = session.written(), list[str]()
        other = self.case.make(self.seed + 1)
        prepared = self.op.prepare(other)
        if alike(self.prepared, prepared):
            session.write(prepared)
            second = self.call("second", placed, grads, names)
            wanted = expect(self.op, other, self.grads, names)
            self._add_second(judge_outcome(self.op, prepared, second, wanted), right)
            written += session.written()
            overwritten = first.unlike(session.read("first"))
            session.write(self.prepared)
        unstable = list[str]()
        for at in range(self._repeats):
            # on a GPU programs run in any order; callers may let numpy raise its errors
            last = {"backwards": True, "numpy_errors": "raise"} if at == self._repeats - 1 else {}
            again = self.call(f"again {at}", placed, grads, names, **last)
            # of several NaN a product has one or the other, by how its operands lie
            unstable += first.unlike(again, any_nan=True)
        self._add_surroundings(first, written, overwritten, unstable)
        return first

    def _add_surroundings(
        self, first: Outcome, written: list[str], overwritten: list[str], unstable: list[str]
    ) -> None:
        session, add = self.session, self._verdicts.add
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
        add("inputs", joined(
            listed("was written to", written), listed("shares memory with an input", views)
        ))  # fmt: skip
        add("determinism", listed("differs between equal calls", unstable))
        add("stale", listed("was overwritten by a later call", overwritten))
        add("state", joined(state, imported))

    def judge_call(
        self,
        context: Values,
        prepared: Values | None = None,
        grads: Sequence[Tensor | None] | None = None,
        expected: Expected | None = None,
        names: Sequence[str] | None = None,
    ) -> str:
        """One call with its gradients, judged: what is wrong, in words.

        Args:
            context: as the guest takes it: how a caller runs it.
            prepared, grads, expected, names: in place of the case's own.
        """
        prepared = self.prepared if prepared is None else prepared
        grads = self.grads if grads is None else grads
        names = self.names if names is None else names
        self.session.begin()
        placed, placed_grads = self.place(prepared, grads)
        outcome = self.call("once", placed, placed_grads, names, **context)
        return self.judge(outcome, prepared, expected or self.expected)

    def judge_forward(self, context: Values) -> str:
        """The same without gradients."""
        return self.judge_call(context, names=())

    def judge(self, outcome: Outcome, prepared: Values, expected: Expected) -> str:
        """The one judgement, and what was written to, in words."""
        session = self.session
        problems = [each.message for each in judge_outcome(self.op, prepared, outcome, expected)]
        results = [*outcome.outputs, *(each for each in outcome.gradients.values() if each)]
        problems += [
            *session.broken(),
            listed("was written to", session.written()),
            "a result shares memory with an input" if any(map(session.shares, results)) else "",
            listed("was changed and not put back", session.changed()["state"]),
        ]
        return joined(*problems)

    def free_inputs(self) -> set[str]:
        """Inputs whose contents may change without others that are made of them."""
        inputs = {spec.name for spec in self.op.of_role("input")}
        return inputs - tied_arguments(self.op, self.arguments)

    def _changed_contents(self, change: Any) -> str:
        """Right for contents that are nearly the ones before, at the same addresses."""
        specs = self.free_inputs()
        arguments, prepared = dict(self.arguments), dict(self.prepared)
        for name, value in self.arguments.items():
            if name in specs and isinstance(value, Tensor) and unchanged(value, prepared.get(name)):
                changed = change(value, self.seed)
                if changed is not None:
                    arguments[name] = prepared[name] = changed
        if all(prepared[name] is value for name, value in self.prepared.items()):
            return ""
        return self._after_others(arguments, prepared)

    def _changed_part(self, name: str, part: str, other: Any) -> str:
        arguments = {**self.arguments, name: with_part(self.arguments[name], part, other)}
        prepared = self.op.prepare(arguments)
        return self._after_others(arguments, prepared) if alike(self.prepared, prepared) else ""

    def _after_others(self, arguments: Values, prepared: Values) -> str:
        """Right where the case's own contents were a call before."""
        session = self.session
        session.begin()
        placed, grads = self.place(self.prepared, self.grads)
        self.call("before", placed, grads, self.names)
        session.write(prepared)
        outcome = self.call("after", placed, grads, self.names)
        expected = expect(self.op, arguments, self.grads, self.names)
        return self.judge(outcome, prepared, expected)

    def place(
        self, prepared: Values, grads: Sequence[Tensor | None] | None
    ) -> tuple[Values, list[Any] | None]:
        """Arguments and incoming gradients in the judge's memory, as `call` takes them."""
        return self.session.put(prepared), self.place_grads(grads)

    def place_grads(self, grads: Sequence[Tensor | None] | None) -> list[Any] | None:
        """The same of incoming gradients alone."""
        return None if grads is None else self.session.put_incoming(grads)

    def call(
        self,
        call: str,
        placed: Values,
        grads: list[Any] | None,
        names: Sequence[str],
        **context: Any,
    ) -> Outcome:
        """Forward, and backward where a gradient is wanted.

        Args:
            call: what to remember it as.
            placed, grads: what `place` gave.
            names: the arguments whose gradients are wanted.
            context: as the guest takes it.
        """
        wanted, context = names if grads is not None else (), {**self._configured, **context}
        self._direction = "forward"
        outcome = self.session.forward(call, placed, wanted, **context)
        if not wanted or grads is None:
            return outcome
        promises = outcome.promises
        # autocast is for the forward pass, as torch's own documentation says
        kept = {key: value for key, value in context.items() if key not in ("autocast", "device")}
        self._direction = "backward"
        outcome = self.session.backward(call, grads, wanted, **kept)
        outcome.promises += promises
        return outcome

    def guard(self, check: str, label: str, run: Any, *arguments: Any) -> None:
        """Adds a finding: what run(*arguments) says, or the fault that its call ended with."""
        try:
            message = run(*arguments)
        except ChildError as error:
            message = self._in_words(error)
        self._verdicts.add(check, f"{label}: {message}" if message else "")

    def _in_words(self, error: ChildError) -> str:
        """What is wrong with a call that failed: nothing where it may refuse its inputs."""
        refused = self.case.refusable and UnsupportedError.__name__ in error.classes
        return "" if refused else fault_message(error)

    def _add(self, problems: list[Problem]) -> bool:
        for each in problems:
            self._verdicts.add(each.check, each.message, each.errors)
        return not any(each.message for each in problems)

    def _add_second(self, problems: list[Problem], first_right: bool) -> None:
        """The second contents at the same addresses; wrong only there: something was kept."""
        wrong = [each for each in problems if each.message]
        if wrong and first_right:
            message = joined(*(each.message for each in wrong))
            self._verdicts.add(
                "stale", f"right at first, wrong for new contents of the same memory: {message}"
            )
        else:
            self._add(wrong)
