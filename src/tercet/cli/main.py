"""The `tercet` command: errors become one line and exit code 2."""

import json
import sys
from typing import Annotated

import typer

from tercet.cli import (
    compress,
    distill,
    evaluate,
    export,
    fetch,
    import_,
    inspect,
    mcp,
    plan,
    run,
    train,
)
from tercet.cli.kernel.app import app as kernel_app
from tercet.errors import TercetError
from tercet.version import VERSION

app = typer.Typer(
    help="Compress language models to ternary, nonary and other low-bit formats; run them packed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(name="fetch")(fetch.fetch_command)
app.command(name="compress")(compress.compress_command)
app.command(name="distill")(distill.distill_command)
app.command(name="train")(train.train_command)
app.command(name="eval")(evaluate.evaluate_command)
app.command(name="run")(run.run_command)
app.command(name="inspect")(inspect.inspect_command)
app.command(name="export")(export.export_command)
app.command(name="import")(import_.import_command)
app.command(name="mcp")(mcp.mcp_command)
app.add_typer(plan.app, name="plan")
app.add_typer(kernel_app, name="kernel")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Compress language models and run them packed."""
    del version


def main() -> None:
    """Entry point: 0 done, 2 bad input (one line on standard error), 130 interrupted."""
    try:
        app()
    except TercetError as error:
        message = " ".join(str(error).split())
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": type(error).__name__, "message": message}))
        typer.echo(f"error: {message}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted; what is on disk is kept: go on with --resume", err=True)
        sys.exit(130)
