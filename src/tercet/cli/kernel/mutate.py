"""tercet kernel mutate OP."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tercet.cli.options.op import Device, OpName
from tercet.cli.show import Json, bar, console, print_json
from tercet.harness.mutate.record import records_of
from tercet.harness.mutate.run import MutationReport, mutate
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.interpreter.corrections import interpreting
from tercet.ops.discover import find
from tercet.records import append, check_appendable

_SHOWN = 40


def mutate_command(
    op: OpName,
    implementation: Annotated[
        str | None, typer.Option(help="Change only this implementation. Default: all.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="Try only so many mutants of each implementation, drawn from the seed."),
    ] = None,
    seed: Annotated[int, typer.Option(help="RNG seed for the checks' inputs and the sample.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="How many to try at once. Default: one per CPU core.")
    ] = None,
    device: Device = None,
    explained: Annotated[
        bool,
        typer.Option(
            "--explained", help="Also try those that mutants.json explains as changing nothing."
        ),
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="Append the results to this file of records (JSON lines).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change an op's own kernels in one place each, and list the changes that no check notices.

    A change that survives is either a fault that `tercet kernel check` misses, or it changes
    nothing; list the latter in mutants.json in the op's folder, with the reason.
    """
    where = device_or_best(device)
    if where == "cpu" and not interpreting():
        # Triton decides when it is imported
        again = [sys.executable, "-m", "tercet", *sys.argv[1:]]
        env = {**os.environ, "TRITON_INTERPRET": "1"}
        raise typer.Exit(subprocess.run(again, env=env, check=False).returncode)
    if record is not None:
        check_appendable(record)
    with bar(quiet=as_json) as progress:
        task = progress.add_task("mutants", total=None)
        report = mutate(
            find(op),
            implementation=implementation,
            device=where,
            seed=seed,
            sample=sample,
            jobs=jobs,
            explained=explained,
            on_done=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if record is not None:
        append(record, records_of(report))
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _show(report)
    if report.survivors:
        raise typer.Exit(1)


def _show(report: MutationReport) -> None:
    table = Table(title=f"mutants of {report.op} on {report.device}, seed {report.seed}")
    ends = "killed", "explained", "unreached", "left"
    for column in ("implementation", "mutants", "tried", *ends, "score"):
        table.add_column(column)
    for name, count in report.mutants.items():
        found = report.ends(name)
        score = report.score(name)
        table.add_row(
            name,
            str(count),
            str(found["killed"] + found["survived"]),
            str(found["killed"]),
            str(found["explained"]),
            str(found["unreached"]),
            str(found["survived"]),
            "" if score is None else f"{score:.1%}",
        )
    console.print(table)
    checks = Counter(each.by for each in report.tried if each.by is not None)
    if checks:
        kinds = ", ".join(f"{check} {count}" for check, count in checks.most_common())
        console.print(f"killed by: {kinds}", soft_wrap=True, highlight=False)
    unreached = Counter(
        f"{each.file}:{each.line}" for each in report.tried if each.end == "unreached"
    )
    if unreached:
        lines = ", ".join(f"{line} ({count})" for line, count in unreached.items())
        console.print(f"reached by no case here: {lines}", soft_wrap=True, highlight=False)
    for name, reason in report.skipped.items():
        console.print(f"{name} was not changed: {reason}")
    for each in report.survivors[:_SHOWN]:
        where = f" {each.implementation}: {each.kind} in {each.file}:{each.line} {each.function}"
        console.print(Text.assemble(("survived", "red"), where), highlight=False)
        console.print(f"- {each.before}", soft_wrap=True, highlight=False)
        console.print(f"+ {each.after}", soft_wrap=True, highlight=False)
    if len(report.survivors) > _SHOWN:
        console.print(f"and {len(report.survivors) - _SHOWN} more: see --json")
