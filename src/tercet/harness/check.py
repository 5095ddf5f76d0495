"""Check: is an implementation right? Forward and backward against float64, and everything around.

The judge makes inputs and references in this process; the implementation runs in another one unless
it is trusted. Every run draws fresh inputs from a seed, which the report names.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.candidate import import_candidate
from tercet.harness.check_integration import alike, check_integration
from tercet.harness.coverage import coverage
from tercet.harness.expected import Expected, expect
from tercet.harness.finding import Finding
from tercet.harness.given import device_or_best
from tercet.harness.gradients import directions, wanted_gradients
from tercet.harness.isolate import MEMORY_BYTES, SECONDS, WorkerError
from tercet.harness.judge import Verdicts, judge, wrong_results
from tercet.harness.layouts import LAYOUTS, lay_out
from tercet.harness.runner import IsolatedRunner, LocalRunner, Runner, fault_kind, fault_message
from tercet.kernel.contract import Case, Implementation, Op
from tercet.kernel.interpreter import correct, interpreting

Values = dict[str, Any]
_GRADCHECK_ELEMENTS = 60
_LAYOUT_CASES = 8


class CheckReport(BaseModel):
    """What a check found.

    Attributes:
        op, device: what was checked, where.
        seed: gives the same inputs again.
        findings: one per case and property; green ones too.
        skipped: implementation -> why it cannot run here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    findings: tuple[Finding, ...]
    skipped: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether something ran and nothing is wrong."""
        return bool(self.findings) and all(finding.passed for finding in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if not finding.passed)


def check(
    op: Op,
    *,
    implementation: str | None = None,
    candidate: Implementation | None = None,
    device: str | None = None,
    seed: int | None = None,
    isolated: bool = True,
    cases: Iterable[Case] | None = None,
    integration: bool = True,
    sanitizer: str | None = None,
    seconds: float = SECONDS,
    memory_bytes: int | None = MEMORY_BYTES,
    location: str | None = None,
    on_case: Callable[[str, str], None] | None = None,
) -> CheckReport:
    """Checks one implementation, a candidate, or all implementations that can run on the device.

    Args:
        op: from `kernel.select.find`.
        implementation: only this one.
        candidate: judged instead of the op's own; its module must be importable.
        device: "cpu" or "cuda"; None is "cuda" where there is one.
        seed: of the inputs; None draws one.
        isolated: run in a process of its own; False is for code that is trusted.
        cases: instead of the op's.
        integration: also opcheck, torch.compile and, on a GPU, graphs and streams.
        sanitizer: a tool of compute-sanitizer to run the process under: memcheck, racecheck, ...
        seconds, memory_bytes: the limits of one case in an isolated process.
        location: the path of the op's folder, where it lies outside the package.
        on_case: called with (implementation, case) before each.
    """
    device = device_or_best(device)
    seed = int.from_bytes(os.urandom(4), "little") >> 1 if seed is None else seed
    prefix = _sanitizer(sanitizer, device, isolated)
    chosen = (candidate,) if candidate is not None else _chosen(op, implementation)
    findings, skipped = [coverage(op, seed), *_reference_gradcheck(op, seed)], dict[str, str]()
    for one in chosen:
        reason = None if candidate is not None else cannot_run(one, device, isolated)
        if reason is not None:
            skipped[one.name] = reason
            continue
        laid = op.held_to(one).arranged(one)
        runner = (
            IsolatedRunner(
                location or op.name,
                one.name,
                one.module if candidate is not None else None,
                device,
                seconds,
                memory_bytes,
                prefix,
            )
            if isolated
            else LocalRunner(op, _load(one), device)
        )
        try:
            some = fitting(laid, one, op.cases if cases is None else cases, seed)
            plain = _spread(some, _LAYOUT_CASES)
            for case in some:
                if on_case is not None:
                    on_case(one.name, case.name)
                findings += _check_case(laid, runner, one.name, case, seed, case in plain)
            if integration:
                findings += check_integration(
                    laid, runner, one.name, plain, seed, device, one.capturable
                )
            if prefix and isinstance(runner, IsolatedRunner):
                findings.append(_sanitized(runner, one.name, sanitizer or ""))
        finally:
            runner.close()
    return CheckReport(
        op=op.name, device=device, seed=seed, findings=tuple(findings), skipped=skipped
    )


def fitting(
    op: Op, implementation: Implementation, cases: Iterable[Case], seed: int = 0
) -> tuple[Case, ...]:
    """The cases whose sizes and options the implementation takes."""
    if op.describe is None:
        return tuple(cases)
    return tuple(
        case for case in cases if op.unfit(implementation, op.prepare(case.make(seed))) is None
    )


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


def _chosen(op: Op, implementation: str | None) -> tuple[Implementation, ...]:
    return op.implementations if implementation is None else (op.implementation(implementation),)


def _load(implementation: Implementation) -> Any:
    if interpreting():
        correct()
    return replace(implementation, module=import_candidate(implementation.module)).load()


def _check_case(
    op: Op, runner: Runner, implementation: str, case: Case, seed: int, layouts: bool
) -> list[Finding]:
    verdicts = Verdicts(implementation, case.name)
    arguments = case.make(seed)
    prepared = op.prepare(arguments)
    other = case.make(seed + 1)
    prepared_other: Values | None = op.prepare(other)
    names = wanted_gradients(op, prepared) if case.gradient else ()
    ways = directions(op, prepared, seed) if names else None
    if not alike(prepared, prepared_other):
        prepared_other = None
    first = expect(op, arguments, ways, names)
    second = expect(op, other, ways, names) if prepared_other is not None else None
    request = {"directions": ways, "wanted": list(names)}
    try:
        report = runner.run("execute", first=prepared, second=prepared_other, **request)
    except WorkerError as error:
        verdicts.add(fault_kind(error), fault_message(error))
        return verdicts.findings
    judge(op, verdicts, prepared, report, first, second, _native(op, arguments, prepared))
    if layouts and all(finding.passed for finding in verdicts.findings):
        for name in LAYOUTS:
            _check_layout(op, runner, verdicts, name, prepared, request, first)
    return verdicts.findings


def _check_layout(
    op: Op,
    runner: Runner,
    verdicts: Verdicts,
    name: str,
    prepared: Values,
    request: Values,
    expected: Expected,
) -> None:
    """The same values laid out otherwise must be right too."""
    specs = {spec.name for spec in op.of_role("input")}
    laid = {
        key: lay_out(name, value, at) if key in specs else value
        for at, (key, value) in enumerate(prepared.items())
    }
    ways: list[Any] | None = request["directions"]
    if ways is not None:
        ways = [lay_out(name, way, len(laid) + at) for at, way in enumerate(ways)]
    check_name = "misaligned" if name == "misaligned" else "strided"
    try:
        report = runner.run(
            "execute", first=laid, second=None, repeats=0, **{**request, "directions": ways}
        )
    except WorkerError as error:
        verdicts.add(check_name, f"{name} inputs: {fault_message(error)}")
        return
    problems = list(report["guard"])
    problems += [f"{key} was written to" for key in report["changed"]]
    problems.append(wrong_results(op, report["outputs"], report["gradients"], expected))
    problems = [problem for problem in problems if problem]
    verdicts.add(check_name, f"{name} inputs: {'; '.join(problems)}" if problems else "")


def _spread(cases: tuple[Case, ...], count: int) -> list[Case]:
    """Some cases with plain values, elements and a gradient, from the whole range."""
    plain = [case for case in cases if case.gradient and _is_plain(case)]
    return list(dict.fromkeys(plain[:: max(1, len(plain) // count)]))[:count]


def _is_plain(case: Case) -> bool:
    """torch's own checks compare NaN with NaN, which an empty mean gives, and call it different; on
    a CPU they have no arithmetic for 8-bit floats."""
    tensors = [value for value in case.make(0).values() if isinstance(value, Tensor)]
    return all(
        value.numel() and not (value.is_floating_point() and value.element_size() == 1)
        for value in tensors
    )


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
            result = op.reference(**{**exact, **dict(zip(names, values, strict=True))})
            outputs = (result,) if isinstance(result, Tensor) else result
            return tuple(output for output in outputs if output.requires_grad)

        try:
            torch.autograd.gradcheck(run, tuple(exact[name] for name in names))
            message = ""
        except (RuntimeError, AssertionError) as error:
            message = " ".join(str(error).split())[:400]
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


def _native(op: Op, arguments: Values, prepared: Values) -> list[Tensor] | None:
    """What plain torch gives in the op's own dtype, to set the error beside."""
    if not op.baselines or op.baselines[0].package is not None:
        return None
    plain = op.baselines[0]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of dtypes that it has no fused kernel for
            given = prepared if plain.prepare is None else plain.preparation(op)(arguments)
            result = plain.load()(**given)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):  # sizes of 0, half on a CPU
        return None
    return [result] if isinstance(result, Tensor) else list(result)


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


def _sanitized(runner: IsolatedRunner, implementation: str, tool: str) -> Finding:
    lines = [line for line in runner.said.splitlines() if line.startswith("=========")]
    errors = [line for line in lines if "Invalid" in line or "hazard" in line or "Error" in line]
    return Finding(
        implementation=implementation,
        case="*",
        check=tool,
        passed=not errors,
        message="; ".join(line.strip("= ") for line in errors[:5]),
    )
