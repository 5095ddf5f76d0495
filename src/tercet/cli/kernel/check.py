"""tercet kernel check OP."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.kernel.shape import Device, OpName, Seed
from tercet.cli.show import Json, bar, console, print_json
from tercet.harness.candidate import candidate_from
from tercet.harness.check import CheckReport, check
from tercet.harness.given import device_or_best
from tercet.harness.isolate import MEMORY_BYTES, SECONDS
from tercet.harness.scale import check_scale
from tercet.kernel.select import find, names


def check_command(
    op: OpName,
    implementation: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    candidate: Annotated[
        Path | None,
        typer.Option(help="A Python file with forward (and gradient) to judge instead."),
    ] = None,
    device: Device = None,
    seed: Seed = None,
    scale: Annotated[
        str | None, typer.Option(help="Check at the shapes of this model of the catalog instead.")
    ] = None,
    sanitizer: Annotated[
        str | None, typer.Option(help="Run under compute-sanitizer: memcheck, racecheck, ...")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit of one case.")] = SECONDS,
    memory_gib: Annotated[
        float, typer.Option(help="Memory limit of the process that is judged.")
    ] = MEMORY_BYTES / 2**30,
    as_json: Json = False,
) -> None:
    """Check forward and backward against float64, and all that a kernel must not do."""
    found = find(op)
    where = device_or_best(device)
    judged = candidate_from(candidate) if candidate is not None else None
    if scale is not None:
        report = check_scale(found, scale, device=where, seed=seed, implementation=implementation)
    else:
        with bar(quiet=as_json) as progress:
            task = progress.add_task("check", total=None)
            report = check(
                found,
                implementation=implementation,
                candidate=judged,
                device=where,
                seed=seed,
                sanitizer=sanitizer,
                seconds=seconds,
                memory_bytes=int(memory_gib * 2**30),
                location=None if op in names() else op,
                on_case=lambda name, case: progress.update(task, description=f"{name} {case}"[:24]),
            )
    if as_json:
        print_json({**report.model_dump(mode="json"), "passed": report.passed})
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: CheckReport) -> None:
    table = Table(title=f"{report.op} on {report.device}, seed {report.seed}")
    for column in ("implementation", "check", "passed", "failed", "worst error / limit"):
        table.add_column(column)
    counts = Counter((f.implementation, f.check, f.passed) for f in report.findings)
    for name, kind in dict.fromkeys((f.implementation, f.check) for f in report.findings):
        table.add_row(
            name,
            kind,
            str(counts[name, kind, True]),
            f"[red]{counts[name, kind, False]}[/]" if counts[name, kind, False] else "0",
            _worst(report, name, kind),
        )
    console.print(table)
    for name, reason in report.skipped.items():
        console.print(f"{name} was not checked: {reason}")
    for fault in report.faults[:12]:
        console.print(f"[red]{fault.implementation} {fault.check}[/] on {fault.case}:")
        console.print(f"  {fault.message}", soft_wrap=True, highlight=False, markup=False)
    if len(report.faults) > 12:
        console.print(f"and {len(report.faults) - 12} more: see --json")
    if not report.findings:
        console.print("[red]nothing was checked[/]")


def _worst(report: CheckReport, implementation: str, kind: str) -> str:
    errors = [
        error
        for finding in report.findings
        if (finding.implementation, finding.check) == (implementation, kind)
        for error in finding.errors
    ]
    if not errors:
        return ""
    worst = max(errors, key=lambda error: error.worst)
    native = [error.native_worst for error in errors if error.native_worst is not None]
    beside = f" (torch in that dtype {max(native):.2g})" if native else ""
    return f"{worst.worst:.2g} in {worst.tensor}{beside}"
