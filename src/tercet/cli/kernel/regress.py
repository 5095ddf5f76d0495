"""tercet kernel regress."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.checkpoints.named_path import demand_no_input
from tercet.cli.show import Json, console, print_json, say
from tercet.errors import UnsupportedError
from tercet.harness.regress.compare import compare
from tercet.harness.regress.report import Change, RegressReport
from tercet.harness.regress.revisions import compare_revisions, model_rows
from tercet.harness.report import regress_markdown, write_regress
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.tuned import device_name
from tercet.ops.discover import names
from tercet.records import Record, load

_MODEL = {"cuda": "llama-3-8b", "cpu": "smollm2-135m"}
_TOKENS = {"cuda": 16384, "cpu": 256}


def regress_command(
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Records of the old version. Default: benchmarks/kernels/DEVICE.jsonl of this "
            "device."
        ),
    ] = None,
    current: Annotated[Path | None, typer.Option(help="Records of the new version.")] = None,
    again: Annotated[
        Path | None,
        typer.Option(help="Records of a second run of the old version, to estimate the noise."),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Instead of reading records, time two git revisions (old, new) interleaved on "
            "this machine; '.' is the working tree."
        ),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(help="With --between: time only this op (may be repeated). Default: all."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="With --between: use the shapes of this catalog model (may be repeated). Default: "
            "llama-3-8b on a GPU, smollm2-135m on a CPU."
        ),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(help="With --between: the number of GPUs that share each layer.")
    ] = 1,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="With --between: tokens per call. Default: 16384 on a GPU, 256 on a CPU."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the report to this Markdown file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write the report to this HTML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two versions' records; exit code 1 if the new one is slower beyond the noise.

    Larger memory or disk use beyond the noise is a regression, too.
    """
    if between is not None:
        report = _between(between, op, model, tensor_parallel, tokens)
    else:
        report = _files(baseline, current, again)
    if markdown is not None:
        demand_no_input(markdown, [baseline, current, again])
        markdown.write_text(regress_markdown(report), encoding="utf-8")
    if html is not None:
        write_regress(report, html)
    if as_json:
        print_json({**report.model_dump(mode="json"), "passed": report.passed})
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _between(
    revisions: tuple[str, str],
    ops: list[str] | None,
    models: list[str] | None,
    tensor_parallel: int,
    tokens: int | None,
) -> RegressReport:
    device = device_or_best(None)
    rows = model_rows(
        ops or sorted(names()),
        models or [_MODEL[device]],
        tensor_parallel,
        tokens or _TOKENS[device],
        device,
    )
    return compare_revisions(rows, *revisions, device=device, progress=say)


def _files(baseline: Path | None, current: Path | None, again: Path | None) -> RegressReport:
    if current is None:
        raise UnsupportedError(
            "give --current FILE.jsonl with records of the version to judge, or --between REVISION "
            "REVISION to time two git revisions"
        )
    baseline = baseline or Path("benchmarks") / "kernels" / f"{device_name()}.jsonl"
    before, after = _records(baseline), _records(current)
    return compare(before, after, _records(again) if again is not None else None)


def _records(path: Path) -> list[Record]:
    if not path.is_file():
        raise UnsupportedError(f"{path} is no file of records: write one with tercet kernel bench")
    return load(path)


def _show(report: RegressReport) -> None:
    changed = report.of("regression", "improvement")
    if changed:
        table = Table(title=f"{report.before} -> {report.after}")
        for column in ("", "op", "row", "metric"):
            table.add_column(column)
        for column in ("before", "after", "change"):
            table.add_column(column, justify="right")
        for change in changed:
            ratio = f"{change.ratio - 1:+.1%}" if change.ratio is not None else change.reason
            values = [f"{value:g}" if value is not None else "-" for value in _pair(change)]
            table.add_row(change.verdict, change.op, change.row, change.metric, *values, ratio)
        console.print(table)
    for note in report.notes:
        say(f"note: {note}")
    console.print(str(report))


def _pair(change: Change) -> tuple[float | None, float | None]:
    return change.before, change.after
