"""tercet eval DIR ..."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.show import Json, bar, console, print_json
from tercet.records import Record, append
from tercet.workflows.evaluation import evaluate


def evaluate_command(
    directories: Annotated[
        list[Path], typer.Argument(help="Packed checkpoints of the same model.")
    ],
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Uncompressed model to compare with, or 'none' to skip the comparison. Default: "
            "the model that the checkpoints were made from."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text to evaluate on (UTF-8). Default: the text that ships with tercet."),
    ] = None,
    length: Annotated[int, typer.Option(help="Context window in tokens.", min=2)] = 1024,
    windows: Annotated[
        int, typer.Option(help="Number of windows to evaluate; 0 for the whole text.", min=0)
    ] = 16,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or cuda:N. Default: the GPU, if there is one."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Append the results to this JSON-lines file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure compressed models: perplexity, divergence from the teacher, size."""
    with bar(as_json) as progress:
        task = progress.add_task("evaluating", total=None)
        records = evaluate(
            list(directories),
            teacher=teacher,
            text=text,
            length=length,
            count=windows or None,
            device=device,
            progress=lambda done, total: progress.update(task, total=total, completed=done),
        )
    if record is not None:
        append(record, records)
    if as_json:
        print_json([one.model_dump(mode="json") for one in records])
    else:
        console.print(_table(records))


def _table(records: list[Record]) -> Table:
    settings = records[0].settings
    table = Table(
        title=f"{settings['text']}, {settings['windows']} windows of {settings['window_tokens']} "
        f"tokens, stride {settings['stride_tokens']}, teacher {settings['teacher']}"
    )
    columns = {
        "perplexity": "{:.2f}",
        "kl_nats": "{:.3f}",
        "top1_agreement": "{:.1%}",
        "bits_per_weight": "{:.2f}",
        "ratio_to_bf16": "{:.1f}x",
        "ratio_to_fp32": "{:.1f}x",
    }
    table.add_column("model")
    for name in columns:
        table.add_column(name, justify="right")
    for one in records:
        cells = [
            form.format(one.metrics[name]) if name in one.metrics else "-"
            for name, form in columns.items()
        ]
        table.add_row(one.subject, *cells)
    return table
