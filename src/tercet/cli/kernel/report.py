"""tercet kernel report."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, print_json, say
from tercet.errors import UnsupportedError
from tercet.harness.report import write_report
from tercet.records import load

_COMMITTED = Path("benchmarks") / "kernels"


def report_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="JSON-lines files of records. Default: benchmarks/kernels/*.jsonl."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path(
        "kernels.html"
    ),
    as_json: Json = False,
) -> None:
    """Write benchmark records as one HTML page with rooflines, history and sortable tables.

    The page needs no network.
    """
    paths = files or sorted(_COMMITTED.glob("*.jsonl"))
    for path in paths:
        if not path.is_file():
            raise UnsupportedError(f"{path} is no file: give what tercet kernel bench wrote")
    if not paths:
        raise UnsupportedError(
            f"no records in {_COMMITTED}: run tercet kernel bench, or name files of records"
        )
    summary = write_report([record for path in paths for record in load(path)], output)
    if as_json:
        print_json(summary.model_dump(mode="json"))
        return
    say(str(summary))
