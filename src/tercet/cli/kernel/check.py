"""tercet kernel check OP."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tercet.cli.options.op import Device, OpName, Seed
from tercet.cli.show import Json, bar, console, print_json
from tercet.errors import UnsupportedError
from tercet.harness.finding import NOT_FINITE
from tercet.harness.sandbox.early import start_early
from tercet.harness.sandbox.isolate import MEMORY_BYTES, SECONDS

if TYPE_CHECKING:
    from tercet.harness.check.run import CheckReport


def check_command(
    op: OpName,
    implementation: Annotated[
        str | None, typer.Option(help="Check only this implementation. Default: all.")
    ] = None,
    candidate: Annotated[
        Path | None,
        typer.Option(
            help="Check this Python file instead, which defines forward() and optionally "
            "gradient()."
        ),
    ] = None,
    device: Device = None,
    seed: Seed = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Check at the production shapes of this catalog model instead of the small cases."
        ),
    ] = None,
    sanitizer: Annotated[
        str | None,
        typer.Option(
            help="Run under this compute-sanitizer tool: memcheck, racecheck, initcheck or "
            "synccheck."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            help="While editing: the likeliest faults first, until one is found, for at most some "
            "15 seconds. Green here is no reason to merge."
        ),
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option(help="Check only this case (may be repeated).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Check only the cases in this dtype.")] = None,
    seconds: Annotated[float, typer.Option(help="Time limit per case, in seconds.")] = SECONDS,
    memory_gib: Annotated[
        float, typer.Option(help="Memory limit of the process that runs the kernel, in GiB.")
    ] = MEMORY_BYTES / 2**30,
    as_json: Json = False,
) -> None:
    """Check an op's forward and backward pass against its float64 reference.

    It also checks what a kernel must not do: write out of bounds, change its inputs, leave
    outputs unwritten, differ from run to run.
    """
    if not (seconds >= 1 and memory_gib >= 1):
        raise UnsupportedError(
            f"--seconds {seconds:g} --memory-gib {memory_gib:g}: both must be at least 1"
        )
    if scale is not None and sanitizer is not None:
        raise UnsupportedError(
            "--sanitizer runs on the small cases and --scale on production shapes: give one of them"
        )
    if scale is not None and (quick or case or dtype is not None):
        raise UnsupportedError(
            "--quick, --case and --dtype are about the small cases: leave them out with --scale"
        )
    if scale is None and sanitizer is None:
        # it and this process import torch at the same time
        start_early(device)
    from tercet.harness.check.run import cases_of, check
    from tercet.harness.check.scale import check_scale
    from tercet.harness.sandbox.candidate import candidate_from
    from tercet.harness.workloads.arguments import device_or_best, dtype_of
    from tercet.ops.discover import find, names

    found = find(op)
    where = device_or_best(device)
    named = None if dtype is None else dtype_of(dtype)
    judged = candidate_from(candidate) if candidate is not None else None
    if scale is not None:
        report = check_scale(
            found,
            scale,
            device=where,
            seed=seed,
            implementation=implementation,
            candidate=judged,
            location=None if op in names() else op,
            seconds=seconds,
        )
    else:
        with bar(quiet=as_json) as progress:
            task = progress.add_task("check", total=None)
            report = check(
                found,
                implementation=implementation,
                candidate=judged,
                device=where,
                seed=seed,
                quick=quick,
                cases=cases_of(found, case or (), named) if case or named else None,
                integration=not case,
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


def _show(report: "CheckReport") -> None:
    table = Table(title=f"{report.op} on {report.device}, seed {report.seed}")
    for column in ("implementation", "check", "passed", "failed", "worst error / limit"):
        table.add_column(column)
    counts = Counter((f.implementation, f.check, f.passed) for f in report.findings)
    for name, kind in dict.fromkeys((f.implementation, f.check) for f in report.findings):
        table.add_row(
            name,
            kind,
            str(counts[name, kind, True]),
            Text(str(counts[name, kind, False]), "red" if counts[name, kind, False] else ""),
            _worst(report, name, kind),
        )
    console.print(table)
    for name, reason in report.skipped.items():
        console.print(f"{name} was not checked: {reason}")
    for guarantee in report.not_guaranteed:
        console.print(Text.assemble(("not guaranteed:", "yellow"), f" {guarantee}"))
    for fault in report.faults[:12]:
        what = f"{fault.implementation} {fault.check}"
        console.print(Text.assemble((what, "red"), f" on {fault.case or 'a case without a name'}:"))
        console.print(f"  {fault.message}", soft_wrap=True, highlight=False)
    if len(report.faults) > 12:
        console.print(f"and {len(report.faults) - 12} more: see --json")
    if report.left and report.passed:
        console.print(f"{report.left} cases were left out: check without --quick", style="yellow")
    if not report.findings:
        console.print("nothing was checked", style="red")


def _worst(report: "CheckReport", implementation: str, kind: str) -> str:
    errors = [
        error
        for finding in report.findings
        if (finding.implementation, finding.check) == (implementation, kind)
        for error in finding.errors
    ]
    if not errors:
        return ""
    worst = max(errors, key=lambda error: error.worst)
    ratios = [error.native_worst for error in errors if error.native_worst is not None]
    finite = [ratio for ratio in ratios if ratio < NOT_FINITE]
    beside = [f"torch in that dtype {max(finite):.2g}"] if finite else []
    if len(finite) < len(ratios):
        beside.append(f"torch not finite in {len(ratios) - len(finite)}")
    native = f" ({', '.join(beside)})" if beside else ""
    return f"{worst.worst:.2g} in {worst.tensor}{native}"
