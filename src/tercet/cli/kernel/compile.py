"""tercet kernel compile [OP ...]."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tercet.cli.show import Json, console, print_json, say
from tercet.harness.cross_compile import (
    TARGETS,
    CompileReport,
    cross_compile,
    judge,
    write_baseline,
)
from tercet.kernel.contract import Op
from tercet.kernel.select import discover, find


def compile_command(
    ops: Annotated[list[str] | None, typer.Argument(help="Names or folders; none: all.")] = None,
    implementation: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(TARGETS)}; may be repeated.")
    ] = None,
    update: Annotated[bool, typer.Option(help="Accept: write compiled.json.")] = False,
    as_json: Json = False,
) -> None:
    """Cross-compile kernels for GPUs that this machine does not have, and guard their resources."""
    found = [find(name) for name in ops] if ops else list(discover().values())
    reports: list[CompileReport] = []
    for op in found:
        report = cross_compile(op, implementation=implementation, targets=target or TARGETS)
        reports.append(_accept(op, report) if update else report)
        if not as_json:
            _show(reports[-1])
    passed = all(report.passed for report in reports)
    if as_json:
        print_json(
            {"passed": passed, "reports": [report.model_dump(mode="json") for report in reports]}
        )
    if not passed:
        raise typer.Exit(1)


def _accept(op: Op, report: CompileReport) -> CompileReport:
    """Writes the rows, unless some are missing; what is wrong with them beyond the baseline."""
    if not report.rows or any(finding.check == "capture" for finding in report.findings):
        return report
    say(f"wrote {write_baseline(op, report.rows)}")
    return judge(op, report.rows)


def _show(report: CompileReport) -> None:
    if not report.rows and report.passed:
        say(f"{report.op}: nothing to compile for a GPU")
        return
    table = Table(title=report.op)
    for column in ("kernel", "target", "registers", "spills", "shared", "instructions", "bits"):
        table.add_column(column)
    for row in report.rows:
        name = f"{row.implementation}: {row.kernel} ({row.workload})"
        if row.resources is None:
            table.add_row(name, row.target, row.outcome, "", "", escape(row.reason or ""), "")
            continue
        has = row.resources
        matrix = [f"{n}x {kind}" for kind, n in has.instructions().items() if n]
        table.add_row(
            name,
            row.target,
            str(has.registers),
            str(has.spills),
            f"{has.shared_bytes:,}",
            ", ".join(matrix),
            f"{has.loads}x{has.load_bits_mean:.0f} in, {has.stores}x{has.store_bits_mean:.0f} out",
        )
    console.print(table)
    for finding in report.findings:
        console.print(
            f"[red]{finding.check}[/red] {finding.implementation}, "
            f"{escape(f'{finding.case}: {finding.message}')}",
            highlight=False,
            soft_wrap=True,
        )
