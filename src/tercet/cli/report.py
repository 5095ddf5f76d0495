"""tercet report RUNS... --out FILE."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.options.device import Device
from tercet.cli.show import Json, console, print_json
from tercet.workflows.report import write_model_report


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Packed checkpoints, files that `tercet eval --record FILE` wrote, and folders "
            "that `tercet eval --tasks NAMES --out FOLDER` wrote."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("report.html"),
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="A text that every checkpoint continues (may be repeated)."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Longest text, in tokens.")] = 64,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write one page about compressed models: sizes, losses, speeds, layers, bytes and texts."""
    report = write_model_report(runs, out, prompts=prompt or [], tokens=tokens, device=device)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        console.print(str(report), soft_wrap=True)
