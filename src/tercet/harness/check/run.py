"""Check: compares an implementation with float64, and finds what else may be wrong with it.

The judge makes inputs and references in this process; the implementation runs in another one unless
it is trusted. Every run draws fresh inputs from a seed, which the report names.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from tercet.child_process import ChildError
from tercet.errors import UnsupportedError, unknown_name
from tercet.harness.author_errors import blames_author, reference_outputs
from tercet.harness.check.subject import MORE, Subject, Work, is_red
from tercet.harness.finding import Finding
from tercet.harness.sandbox.candidate import import_candidate
from tercet.harness.sandbox.faults import fault_finding
from tercet.harness.sandbox.isolate import MEMORY_BYTES, SECONDS
from tercet.harness.sandbox.session import Apart, Here, Session
from tercet.harness.seed import draw_seed
from tercet.harness.workloads.arguments import device_or_best
from tercet.harness.workloads.coverage import coverage
from tercet.kernel.contract import Case, Implementation, Op
from tercet.kernel.interpreter.corrections import correct, interpreting

Values = dict[str, Any]
_GRADCHECK_ELEMENTS = 60
DRAWN = 40
_QUICK_DRAWN = 6
_QUICK_SECONDS = 5.0  # beside some 8 s in which two processes import torch


class CheckReport(BaseModel):
    """What a check found.

    Attributes:
        op, device: what was checked, where.
        seed: gives the same inputs again.
        findings: one per case and property; green ones too.
        skipped: implementation -> why it cannot run here.
        not_guaranteed: what the platform cannot keep a candidate from.
        left: how many cases a quick check did not come to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    findings: tuple[Finding, ...]
    skipped: dict[str, str]
    not_guaranteed: tuple[str, ...] = ()
    left: int = 0

    @property
    def passed(self) -> bool:
        """Whether something ran and nothing is wrong."""
        return bool(self.findings) and all(finding.passed for finding in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if not finding.passed)


@blames_author
def check(
    op: Op,
    *,
    implementation: str | None = None,
    candidate: Implementation | None = None,
    device: str | None = None,
    seed: int | None = None,
    isolated: bool = True,
    cases: Iterable[Case] | None = None,
    drawn: int | None = None,
    quick: bool = False,
    until_red: bool = False,
    integration: bool = True,
    sanitizer: str | None = None,
    seconds: float = SECONDS,
    memory_bytes: int | None = MEMORY_BYTES,
    location: str | None = None,
    on_case: Callable[[str, str], None] | None = None,
) -> CheckReport:
    """Checks one implementation, a candidate, or all implementations that can run on the device.

    Args:
        op: from `ops.discover.find`.
        implementation: only this one.
        candidate: judged instead of the op's own; its module must be importable.
        device: "cpu" or "cuda"; None is "cuda" where there is one.
        seed: of the inputs; None draws one.
        isolated: run in a process of its own; False is for code that is trusted.
        cases: instead of the op's.
        drawn: how many cases are drawn from the seed beside these; None: 40 beside the op's own,
            none beside others.
        quick: what is most often wrong first, until something is, or for some seconds.
        until_red: in that order too, but all of it where nothing is wrong.
        integration: also opcheck, torch.compile and, on a GPU, graphs and streams.
        sanitizer: a tool of compute-sanitizer to run the process under: memcheck, racecheck, ...
        seconds, memory_bytes: the limits of one case in an isolated process.
        location: the path of the op's folder, where it lies outside the package.
        on_case: called with (implementation, case) before each.
    """
    device = device_or_best(device)
    seed = draw_seed() if seed is None else seed
    prefix = _sanitizer(sanitizer, device, isolated)
    count = (DRAWN if cases is None else 0) if drawn is None else drawn
    chosen = (candidate,) if candidate is not None else _select(op, implementation)
    findings, skipped = [coverage(op, seed), *_reference_gradcheck(op, seed)], dict[str, str]()
    missing, left = list[str](), 0
    for one in chosen:
        reason = None if candidate is not None else cannot_run(one, device, isolated)
        if reason is not None:
            skipped[one.name] = reason
            continue
        laid = op.held_to(one).in_layout_of(one)
        apart = (
            Apart(
                location or op.name,
                one.name,
                one.module if candidate is not None else None,
                device,
                seconds,
                memory_bytes,
                prefix,
            )
            if isolated
            else None
        )
        place = apart or Here(op, _load(one), device)
        subject = Subject(laid, one, Session(place), apart, seed, device)
        try:
            if apart is not None and (fault := _start_fault(apart, one.name)) is not None:
                findings.append(fault)
                continue
            work = subject.on_cases(op.cases if cases is None else cases)
            work += subject.on_drawn(min(count, _QUICK_DRAWN) if quick else count, kinds=not quick)
            if not quick:
                work += subject.on_held()
            if integration and not quick:
                work += subject.on_all_together()
            if quick or until_red:
                work = _suspects_first(work)
            end = None
            for at, (case, run) in enumerate(work):
                late = end is not None and time.monotonic() > end
                if late or ((quick or until_red) and is_red(findings)):
                    left += len(work) - at
                    break
                if on_case is not None:
                    on_case(one.name, case)
                findings += run()
                if quick and end is None:
                    # from here on: a process has started, a kernel is compiled
                    end = time.monotonic() + _QUICK_SECONDS / len(chosen)
            if apart is not None:
                missing += apart.missing
            if prefix and apart is not None:
                findings.append(_sanitized(apart.said, one.name, sanitizer or ""))
        finally:
            place.close()
    return CheckReport(
        op=op.name,
        device=device,
        seed=seed,
        findings=tuple(findings),
        skipped=skipped,
        not_guaranteed=tuple(dict.fromkeys(missing)),
        left=left,
    )


def _start_fault(apart: Apart, implementation: str) -> Finding | None:
    """The finding of a module that cannot be imported, with which no case can run."""
    try:
        apart.start()
    except ChildError as error:
        return fault_finding(error, implementation, "*")
    return None


def _suspects_first(work: Work) -> Work:
    """One case of each kind of input, the drawn ones, those in other layouts, then all others."""
    names, kinds = [name for name, _ in work], dict[str, int]()
    more = [at for at, name in enumerate(names) if MORE in name]
    drawn = [at for at, name in enumerate(names) if name.startswith("drawn")]
    for at, name in enumerate(names):
        if at not in more and at not in drawn:
            kinds.setdefault(_kind(name), at)
    firsts = list(kinds.values())
    # what is left of a case comes after the case
    early = [at for at in more if at - 1 in firsts]
    order = dict.fromkeys((*firsts, *drawn, *early, *range(len(work))))
    return [work[at] for at in order]


def _kind(case: str) -> str:
    """A case's name without its sizes."""
    return "-".join(part for part in case.split("-") if not part.isdigit())


def cases_of(
    op: Op, names: Sequence[str] = (), dtype: torch.dtype | None = None
) -> tuple[Case, ...]:
    """The op's cases of these names (all where none is named), and of this dtype of activations.

    UnsupportedError for a name that no case has, and where no case is left.
    """
    known = {case.name: case for case in op.cases}
    for name in names:
        if name not in known:
            raise UnsupportedError(unknown_name(f"case of {op.name!r}", name, known))
    chosen = tuple(known[name] for name in names or known)
    if dtype is not None:
        chosen = tuple(case for case in chosen if dtype in _dtypes(case))
    if not chosen:
        raise UnsupportedError(f"op {op.name!r} has no such case in {dtype}")
    return chosen


def _dtypes(case: Case) -> set[torch.dtype]:
    tensors = (value for value in case.make(0).values() if isinstance(value, Tensor))
    return {value.dtype for value in tensors}


def cannot_run(implementation: Implementation, device: str, isolated: bool) -> str | None:
    """Why an implementation cannot be checked on a device; None where it can."""
    devices = implementation.requirement.devices
    if device == "cpu" and implementation.language == "triton":
        if isolated or interpreting():
            return None
        return "Triton is not interpreting: set TRITON_INTERPRET=1 before Python starts"
    if devices and device not in devices:
        return f"runs on {' or '.join(devices)}, not on {device}"
    return None


def _select(op: Op, implementation: str | None) -> tuple[Implementation, ...]:
    return op.implementations if implementation is None else (op.implementation(implementation),)


def _load(implementation: Implementation) -> Any:
    if interpreting():
        correct()
    return replace(implementation, module=import_candidate(implementation.module)).load()


def _reference_gradcheck(op: Op, seed: int) -> list[Finding]:
    """The reference's own gradient against finite differences, on a small case."""
    for case in op.cases:
        arguments = case.make(seed)
        names = [n for n in op.differentiable if isinstance(arguments.get(n), Tensor)]
        sizes = [arguments[name].numel() for name in names]
        if not names or not case.gradient or not 4 <= max(sizes) <= _GRADCHECK_ELEMENTS:
            continue
        exact = {**arguments, **{n: arguments[n].double().requires_grad_() for n in names}}

        def run(*values: Tensor, exact: Values = exact, names: list[str] = names) -> Any:
            outputs = reference_outputs(op, {**exact, **dict(zip(names, values, strict=True))})
            return tuple(output for output in outputs if output.requires_grad)

        try:
            torch.autograd.gradcheck(run, tuple(exact[name] for name in names))
            message = ""
        except (RuntimeError, AssertionError) as error:
            message = " ".join(str(error).split())[:400]
            dtypes = {each.dtype for each in run(*(exact[name] for name in names))}
            if other := dtypes - {torch.float64}:
                message = (
                    f"the reference gives {', '.join(map(str, other))} for float64 arguments, and "
                    f"is to be computed in float64 throughout: {message}"
                )
        return [
            Finding(
                implementation="reference",
                case=case.name,
                check="gradcheck",
                passed=not message,
                message=message,
            )
        ]
    return []


def _sanitizer(tool: str | None, device: str, isolated: bool) -> tuple[str, ...]:
    if tool is None:
        return ()
    found = shutil.which("compute-sanitizer")
    if device != "cuda" or not isolated or found is None:
        raise UnsupportedError(
            f"sanitizer {tool!r} needs a GPU, an isolated check and compute-sanitizer on PATH: "
            "it comes with the CUDA toolkit"
        )
    return (found, "--tool", tool, "--print-limit", "20", "--log-file", "/dev/stderr")


def _sanitized(said: str, implementation: str, tool: str) -> Finding:
    lines = [line for line in said.splitlines() if line.startswith("=========")]
    errors = [line for line in lines if "Invalid" in line or "hazard" in line or "Error" in line]
    return Finding(
        implementation=implementation,
        case="*",
        check=tool,
        passed=not errors,
        message="; ".join(line.strip("= ") for line in errors[:5]),
    )
