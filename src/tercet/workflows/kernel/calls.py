"""Kernel calls: what `tercet kernel` does, by plain names and numbers, for machines.

Each function here finds the op, calls the harness's function of that name and shortens its report.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tercet.errors import UnsupportedError
from tercet.harness.bench.run import BenchReport
from tercet.harness.bench.run import bench as bench_op
from tercet.harness.check.run import CheckReport, cases_of
from tercet.harness.check.run import check as check_op
from tercet.harness.check.scale import check_scale
from tercet.harness.cross_compile import TARGETS, CompileReport, accept, cross_compile
from tercet.harness.finding import Finding
from tercet.harness.new_op import NewOp, new_op
from tercet.harness.profile import ProfileReport
from tercet.harness.profile import profile as profile_op
from tercet.harness.regress.compare import compare
from tercet.harness.report import ReportSummary, write_report
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.sandbox.early import start_early
from tercet.harness.timing.ceilings import ceilings
from tercet.harness.timing.roofline import flops_per_second
from tercet.harness.tune.configuration_outcome import ConfigurationOutcome
from tercet.harness.tune.run import TuneReport
from tercet.harness.tune.run import tune as tune_op
from tercet.harness.workloads.arguments import complete_sizes, device_or_best, dtype_of, known_axes
from tercet.harness.workloads.shapes import Shape, shapes, workloads_of
from tercet.kernel import select
from tercet.kernel.contract import Op, Workload
from tercet.kernel.tuned import Direction, device_name
from tercet.ops import discover
from tercet.records import Record, append, check_appendable, load
from tercet.workflows.kernel.results import (
    BenchSummary,
    Calls,
    CaseSummary,
    CheckSummary,
    Choice,
    Fault,
    OpSummary,
    RegressSummary,
    Timing,
)

_COMMITTED = Path("benchmarks") / "kernels"
_FAULTS = 20
_TRIALS = 5


def get_ready() -> None:
    """What most calls need, ahead of them: this module, and a process for the next check."""
    start_early(device_or_best(None))


def list_ops() -> tuple[OpSummary, ...]:
    """Every op of the package."""
    return tuple(_describe(op) for op in discover.discover().values())


def explain(
    op: str,
    *,
    sizes: Mapping[str, int],
    dtype: str,
    device: str | None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Choice, ...]:
    """Each implementation's verdict, best first."""
    found = discover.find(op)
    known_axes(found, sizes)
    verdicts = select.explain(found, device_or_best(device), dtype_of(dtype), sizes, options)
    return tuple(
        Choice(
            implementation=verdict.implementation,
            allowed=verdict.allowed,
            chosen=verdict.chosen,
            reason=verdict.reason,
        )
        for verdict in verdicts
    )


def new(name: str, *, to: str | None, like: str | None) -> NewOp:
    """`harness.new_op`."""
    return new_op(name, to, like=like)


def check(
    op: str,
    *,
    implementation: str | None,
    candidate: str | None,
    device: str | None,
    seed: int | None,
    cases: list[str] | None,
    model: str | None,
    quick: bool = False,
) -> CheckSummary:
    """`harness.check`, or `harness.scale` at a model's shapes."""
    found, where = discover.find(op), device_or_best(device)
    if model is not None:
        report = check_scale(
            found,
            model,
            device=where,
            seed=seed,
            implementation=implementation,
            candidate=candidate_from(Path(candidate)) if candidate is not None else None,
            location=None if op in discover.names() else op,
        )
    else:
        report = check_op(
            found,
            implementation=implementation,
            candidate=candidate_from(Path(candidate)) if candidate is not None else None,
            device=where,
            seed=seed,
            cases=cases_of(found, cases) if cases is not None else None,
            integration=cases is None,
            quick=quick,
            location=None if op in discover.names() else op,
        )
    counts = Counter((finding.implementation, finding.passed) for finding in report.findings)
    names = sorted({finding.implementation for finding in report.findings})
    return CheckSummary(
        op=report.op,
        device=report.device,
        seed=report.seed,
        passed=report.passed,
        green={name: counts[name, True] for name in names},
        red={name: counts[name, False] for name in names if counts[name, False]},
        skipped=report.skipped,
        faults=_faults(report),
    )


def cases(op: str) -> tuple[CaseSummary, ...]:
    """Those that the op has of its own."""
    found = discover.find(op)
    return tuple(CaseSummary(name=each.name, gradient=each.gradient) for each in found.cases)


def compile_kernels(
    op: str,
    *,
    implementation: str | None,
    targets: list[str] | None,
    calls: dict[str, Any] | None,
    update: bool,
) -> CompileReport:
    """`harness.cross_compile`."""
    found = discover.find(op)
    if calls is not None and update:
        raise UnsupportedError(
            "update writes the baseline of an op's production calls: give update or calls"
        )
    report = cross_compile(
        found,
        implementation=implementation,
        targets=targets or TARGETS,
        workloads=_workloads(found, Calls.model_validate(calls)) if calls is not None else (),
    )
    return accept(found, report) if update else report


def bench(
    op: str,
    *,
    calls: dict[str, Any],
    implementation: str | None,
    candidate: str | None,
    baselines: bool,
    device: str | None,
    seed: int | None,
    write: str | None,
) -> BenchSummary:
    """`harness.bench`; the records are appended to the file `write`."""
    found = discover.find(op)
    if write is not None:
        check_appendable(Path(write))
    report = bench_op(
        found,
        _workloads(found, Calls.model_validate(calls)),
        implementations=None if implementation is None else (implementation,),
        baselines=baselines,
        device=device_or_best(device),
        seed=seed,
        candidate=candidate_from(Path(candidate)) if candidate is not None else None,
    )
    if write is not None:
        append(Path(write), report.records)
    return BenchSummary(
        op=report.op,
        device=report.device,
        seed=report.seed,
        passed=report.passed,
        copy_bytes_per_second=report.ceilings.copy_bytes_per_second,
        timings=tuple(_timing(record) for record in report.records),
        faults=_faults(report),
        written=write,
    )


def profile(
    op: str,
    *,
    calls: dict[str, Any],
    implementation: str | None,
    direction: Direction,
    device: str | None,
) -> tuple[ProfileReport, ...]:
    """`harness.profile` of each call."""
    found, where = discover.find(op), device_or_best(device)
    limits = ceilings(where)
    return tuple(
        profile_op(
            found,
            workload,
            device=where,
            implementation=implementation,
            direction=direction,
            copy_bytes_per_second=limits.copy_bytes_per_second,
            flops_per_second=flops_per_second(limits, workload.dtype),
        )
        for workload in _workloads(found, Calls.model_validate(calls))
    )


def tune(
    op: str,
    *,
    calls: dict[str, Any],
    implementation: str,
    device: str | None,
    seed: int | None,
    write: bool,
) -> TuneReport:
    """`harness.tune`; of the configurations that were tried, only the fastest are returned."""
    found = discover.find(op)
    report = tune_op(
        found,
        implementation,
        _workloads(found, Calls.model_validate(calls)),
        device=device_or_best(device),
        seed=seed,
        write=write,
    )
    shortened = tuple(
        shape.model_copy(update={"trials": _fastest(shape.trials)}) for shape in report.shapes
    )
    return report.model_copy(update={"shapes": shortened})


def production_shapes(
    op: str, *, models: list[str], tensor_parallel: int, tokens: int | None
) -> tuple[Shape, ...]:
    """`harness.shapes`."""
    return shapes(discover.find(op), tuple(models), tensor_parallel, tokens)


def regress(*, current: str, baseline: str | None, again: str | None) -> RegressSummary:
    """`harness.regress` of files of records."""
    committed = _COMMITTED / f"{device_name()}.jsonl"
    report = compare(
        _records(Path(baseline) if baseline is not None else committed),
        _records(Path(current)),
        _records(Path(again)) if again is not None else None,
    )
    return RegressSummary(
        device=report.device,
        before=report.before,
        after=report.after,
        passed=report.passed,
        summary=str(report),
        regressions=tuple(map(str, report.of("regression"))),
        improvements=tuple(map(str, report.of("improvement"))),
        other=tuple(map(str, report.of("missing", "new"))),
        notes=report.notes,
    )


def report(*, output: str, files: list[str] | None) -> ReportSummary:
    """`harness.report` of files of records."""
    paths = sorted(_COMMITTED.glob("*.jsonl")) if files is None else [Path(file) for file in files]
    if not paths:
        raise UnsupportedError(f"no records in {_COMMITTED}: have bench write some, or name files")
    return write_report([record for path in paths for record in _records(path)], Path(output))


def _describe(op: Op) -> OpSummary:
    package = import_module(f"tercet.ops.{op.name}")
    assert package.__file__ is not None
    return OpSummary(
        name=op.name,
        folder=str(Path(package.__file__).parent),
        meaning=(package.__doc__ or "").strip().partition("\n")[0],
        axes={axis.name: axis.meaning for axis in op.axes},
        tensors={
            spec.name: f"{spec.role} [{', '.join(spec.axes)}] "
            f"{', '.join(str(dtype)[6:] for dtype in spec.dtypes)}"
            + (", may be absent" if spec.optional else "")
            for spec in op.tensors
        },
        differentiable=op.differentiable,
        implementations=tuple(f"{one.name} ({one.language})" for one in op.implementations),
        baselines=tuple(baseline.name for baseline in op.baselines),
        cases=len(op.cases),
    )


def _workloads(op: Op, calls: Calls) -> tuple[Workload, ...]:
    if (calls.sizes is None) == (calls.model is None):
        raise UnsupportedError("calls: give either sizes or a model of the catalog")
    dtype = dtype_of(calls.dtype)
    if calls.model is not None:
        found = workloads_of(op, calls.model, calls.tensor_parallel, calls.tokens)
        options = calls.options
        return tuple(replace(w, dtype=dtype, options={**w.options, **options}) for w in found)
    sizes = calls.sizes or {}
    known_axes(op, sizes)
    complete_sizes(op, sizes)
    name = " ".join(f"{axis}={size}" for axis, size in sizes.items())
    return (Workload(name=name, sizes=sizes, dtype=dtype, options=calls.options),)


def _records(path: Path) -> list[Record]:
    if not path.is_file():
        raise UnsupportedError(f"{path} is no file of records: have bench write one")
    return load(path)


def _faults(report: CheckReport | BenchReport) -> tuple[Fault, ...]:
    return tuple(_fault(finding) for finding in report.faults[:_FAULTS])


def _fault(finding: Finding) -> Fault:
    return Fault(
        implementation=finding.implementation,
        case=finding.case,
        check=finding.check,
        message=finding.message,
        errors=tuple(str(error) for error in finding.errors if error.worst > 1),
    )


def _timing(record: Record) -> Timing:
    return Timing(
        settings=record.settings,
        outcome=record.outcome,
        reason=record.reason,
        metrics=record.metrics,
    )


def _fastest(measurements: Iterable[ConfigurationOutcome]) -> tuple[ConfigurationOutcome, ...]:
    timed = [measurement for measurement in measurements if measurement.time_us is not None]
    return tuple(sorted(timed, key=lambda measurement: measurement.time_us or 0.0)[:_TRIALS])
