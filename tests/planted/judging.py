"""Judging: runs the harness on a planted kernel; says which checks are red, and why.

These functions run in a child process (a `Worker` with the folder of the tests on its path), so
that what a planted kernel leaves behind stays there, and Triton's interpreter is on.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from planted.catalog import Planted, find_op, read

from tercet.harness.bench.run import bench
from tercet.harness.check.at_scale import check_workload
from tercet.harness.check.run import check
from tercet.harness.finding import Finding
from tercet.kernel.contract import Case, Implementation, Op, Workload
from tercet.kernel.interpreter.corrections import correct, interpreting

# cases come in threes, one a dtype: any number that three does not divide leaves all in each part
PARTS = 5
SHARES = 11
_SMALL = 1 << 15
_INTEGRATION = ("opcheck", "compile", "graph", "stream")
TIMED = ("clock", "threads")
_LIMIT_SECONDS = 600.0  # ends a hang: a slow machine judges as well
_ENDLESS_SECONDS = 5.0  # of a kernel that never returns
_LIMIT_BYTES = 3 * 2**29

Red = dict[str, str]


def red_of_fault(path: str, device: str, seed: int) -> Red:
    """Check name -> message of its first finding, until the expected check is red."""
    fault = read(Path(path))
    if fault.caught_by == "scale":
        return _at_scale(fault, device, seed)
    if fault.caught_by in TIMED:
        return _timed(fault, device, seed)
    op, red = find_op(fault.op), Red()
    cases = op.cases[:1] if fault.hostile else _small(op)
    for part in range(PARTS if len(cases) > PARTS else 1):
        report = check(
            op,
            candidate=fault.implementation(),
            device=device,
            seed=seed,
            isolated=fault.hostile,
            cases=cases[part::PARTS],
            integration=fault.caught_by in _INTEGRATION,
            seconds=_ENDLESS_SECONDS if fault.name == "rms_norm_endless" else _LIMIT_SECONDS,
            memory_bytes=_LIMIT_BYTES,
        )
        red = _first(report.faults) | red
        if fault.caught_by in red:
            break
    return red


def red_of_right(path: str, device: str, seed: int, part: int | None) -> Red:
    """The same for a right kernel; `part` limits it to that one of SHARES of the small cases."""
    right = read(Path(path))
    return _red_of(find_op(right.op), right.implementation(), device, seed, part)


def red_of_own(op: str, implementation: str, device: str, seed: int, part: int | None) -> Red:
    """The same for an op's own implementation."""
    return _red_of(find_op(op), find_op(op).implementation(implementation), device, seed, part)


def _red_of(
    op: Op, implementation: Implementation, device: str, seed: int, part: int | None
) -> Red:
    report = check(
        op,
        candidate=implementation,
        device=device,
        seed=seed,
        isolated=False,
        cases=op.cases if part is None else _small(op)[part::SHARES],
        integration=part is None,
    )
    assert report.findings
    return _first(report.faults)


def _small(op: Op) -> tuple[Case, ...]:
    """Those cases that Triton's interpreter gets through in a moment."""
    return tuple(case for case in op.cases if _elements(op.prepare(case.make(0))) <= _SMALL)


def _elements(prepared: Mapping[str, object]) -> int:
    return sum(value.numel() for value in prepared.values() if isinstance(value, torch.Tensor))


def _at_scale(fault: Planted, device: str, seed: int) -> Red:
    """Red "scale" where the fault shows at its production size."""
    if interpreting():
        correct()
    findings = check_workload(
        find_op(fault.op),
        fault.implementation().load(),
        Workload(name="scale", sizes=fault.sizes, dtype=torch.bfloat16),
        implementation=fault.name,
        device=device,
        seed=seed,
    )
    wrong = [finding.message for finding in findings if not finding.passed]
    return {"scale": wrong[0]} if wrong else {}


def _timed(fault: Planted, device: str, seed: int) -> Red:
    report = bench(
        find_op(fault.op),
        [Workload(name="small", sizes=fault.sizes, dtype=torch.float32)],
        implementations=(),
        baselines=False,
        directions=("forward",),
        device=device,
        seed=seed,
        seconds_per_row=0.05,
        candidate=fault.implementation(),
    )
    return _first(report.faults)


def _first(faults: Iterable[Finding]) -> Red:
    red = Red()
    for finding in faults:
        red.setdefault(finding.check, f"{finding.case}: {finding.message[:300]}")
    return red
