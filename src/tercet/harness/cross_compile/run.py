"""Cross-compile: an op's rows from a child process, judged by its baseline."""

import os
import subprocess
import sys
from collections.abc import Sequence

from tercet.errors import BuildError
from tercet.harness.cross_compile.baseline import baseline_path, compare, read_baseline
from tercet.harness.cross_compile.report import ROWS, CompileReport, CompileRow
from tercet.harness.cross_compile.target import TARGETS, target_of
from tercet.harness.cross_compile.units import reason
from tercet.harness.finding import Finding
from tercet.kernel.contract import Op
from tercet.kernel.select import names
from tercet.records import Environment, Outcome, Record

COMPILED = ("triton", "gluon", "cuda")
_MINUTES = 20


def cross_compile(
    op: Op, *, implementation: str | None = None, targets: Sequence[str] = TARGETS
) -> CompileReport:
    """Compiles the kernels that the op's production calls launch, without a GPU.

    Args:
        op: of the package, or found by the path of its folder.
        implementation: its name; None for all that are compiled (Triton, Gluon, CUDA C++).
        targets: of TARGETS.

    Returns:
        A row for each kernel, variant and target; findings where something spills, was lost
        against the op's `compiled.json`, or where the launches could not be captured at all.

    Raises:
        UnsupportedError: for an unknown implementation or target.
    """
    for target in targets:
        target_of(target)
    chosen = op.implementations if implementation is None else (op.implementation(implementation),)
    rows: list[CompileRow] = []
    findings: list[Finding] = []
    compiled: set[str] = set()
    for one in chosen:
        if one.language not in COMPILED:
            continue
        try:
            found = _in_child(op, one.name, targets)
        except BuildError as error:
            findings.append(_not_captured(one.name, str(error)))
            continue
        if not found:
            findings.append(_not_captured(one.name, "there are none"))
        rows += found
        compiled.add(one.name)
    accepted = [row for row in read_baseline(op) if row.implementation in compiled]
    findings += compare(rows, accepted, targets)
    return CompileReport(op=op.name, rows=tuple(rows), findings=tuple(findings))


def as_records(report: CompileReport, environment: Environment) -> list[Record]:
    """The report as records of kind "compile", for the store and for regression reports."""
    records: list[Record] = []
    for row in report.rows:
        found = row.resources
        records.append(
            Record(
                kind="compile",
                subject=report.op,
                settings={
                    "implementation": row.implementation,
                    "kernel": row.kernel,
                    "target": row.target,
                    "variant": row.variant,
                },
                metrics=found.model_dump() if found is not None else {},
                outcome=Outcome.FAILED if found is None else Outcome.OK,
                reason=row.reason,
                environment=environment,
            )
        )
    return records


def _in_child(op: Op, implementation: str, targets: Sequence[str]) -> tuple[CompileRow, ...]:
    name = op.name if op.name in names() else str(baseline_path(op).parent)
    module = "tercet.harness.cross_compile.child"
    done = subprocess.run(
        [sys.executable, "-m", module, name, implementation, ",".join(targets)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * _MINUTES,
        env=_environment(),
    )
    if done.returncode:
        raise BuildError(f"{op.name} {implementation}: {reason(done.stderr, done.returncode)}")
    return ROWS.validate_json(done.stdout)


def _environment() -> dict[str, str]:
    """Ours, without the interpreter, without a GPU (whose tuned table would be taken), one thread.

    The child forks, which a process with running threads must not.
    """
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _not_captured(implementation: str, message: str) -> Finding:
    return Finding(
        implementation=implementation,
        case="production calls",
        check="capture",
        passed=False,
        message=f"its launches could not be captured: {message}",
    )
