"""Cross-compile: an op's rows from a child process, judged by its baseline."""

import os
import random
from collections.abc import Sequence

from tercet.child_process import Child, ChildError
from tercet.errors import BuildError
from tercet.harness.cross_compile.baseline import baseline_path, compare, read_baseline
from tercet.harness.cross_compile.report import ROWS, CompileReport, CompileRow
from tercet.harness.cross_compile.reuse import ALL
from tercet.harness.cross_compile.target import TARGETS, target_of
from tercet.harness.cross_compile.units import reason
from tercet.harness.finding import Finding
from tercet.kernel.contract import Op, Workload
from tercet.ops.discover import names
from tercet.records import Environment, Outcome, Record

COMPILED = ("triton", "gluon", "cuda")
_MINUTES = 20


def cross_compile(
    op: Op,
    *,
    implementation: str | None = None,
    targets: Sequence[str] = TARGETS,
    workloads: Sequence[Workload] = (),
    recompile: int = 0,
) -> CompileReport:
    """Compiles the kernels that the op's production calls launch, without a GPU.

    Args:
        op: of the package, or found by the path of its folder.
        implementation: its name; None for all that are compiled (Triton, Gluon, CUDA C++).
        targets: of TARGETS.
        workloads: compiled for these calls instead; then only spills are judged.
        recompile: so many kernels whose sources are as accepted are drawn and compiled all the
            same; ALL compiles everything anew.

    Returns:
        A row for each kernel, variant and target; findings where something spills, was lost
        against the op's `compiled.json`, or where the launches could not be captured at all.

    Raises:
        UnsupportedError: for an unknown implementation or target.
    """
    for target in targets:
        target_of(target)
    chosen = op.implementations if implementation is None else (op.implementation(implementation),)
    wanted = [one.name for one in chosen if one.language in COMPILED]
    rows: list[CompileRow] = []
    findings: list[Finding] = []
    compiled: set[str] = set()
    reused = 0
    for name, count in _share(recompile, wanted).items():
        try:
            found, spared = _in_child(op, name, targets, workloads, count)
        except BuildError as error:
            findings.append(_not_captured(name, str(error)))
            continue
        if not found:
            findings.append(_not_captured(name, "there are none"))
        rows += found
        reused += spared
        compiled.add(name)
    known = () if workloads else read_baseline(op)
    accepted = [row for row in known if row.implementation in compiled]
    findings += compare(rows, accepted, targets)
    return CompileReport(
        op=op.name,
        rows=tuple(rows),
        findings=tuple(findings),
        has_baseline=baseline_path(op).exists() and not workloads,
        reused=reused,
    )


def _share(recompile: int, implementations: Sequence[str]) -> dict[str, int]:
    """How many of the kernels that are compiled all the same are each implementation's."""
    if recompile >= ALL:
        return dict.fromkeys(implementations, ALL)
    # fresh in every run: what nobody would look at is not always the same
    drawn = random.SystemRandom().choices(implementations, k=recompile) if implementations else []
    return {name: drawn.count(name) for name in implementations}


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


def _in_child(
    op: Op,
    implementation: str,
    targets: Sequence[str],
    workloads: Sequence[Workload],
    recompile: int,
) -> tuple[tuple[CompileRow, ...], int]:
    name = op.name if op.name in names() else str(baseline_path(op).parent)
    asked = [
        {
            "name": each.name,
            "sizes": dict(each.sizes),
            "dtype": str(each.dtype)[6:],
            "options": dict(each.options),
        }
        for each in workloads
    ]
    arguments = {
        "name": name,
        "implementation": implementation,
        "targets": list(targets),
        "asked": asked,
        "recompile": recompile,
    }
    preload = "tercet.harness.cross_compile.child:get_ready"
    with Child(seconds=60 * _MINUTES, environment=_environment(), preload=preload) as child:
        try:
            found = child.request("tercet.harness.cross_compile.child:compile_rows", arguments)
        except ChildError as error:
            why = reason(f"{child.said}\n{error.log}", error.status or 1)
            raise BuildError(f"{op.name} {implementation}: {why}") from error
    return ROWS.validate_python(found["rows"]), found["reused"]


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
