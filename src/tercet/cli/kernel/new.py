"""tercet kernel new NAME."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, print_json
from tercet.harness.new_op import new_op


def new_command(
    name: Annotated[str, typer.Argument(help="The op's name, as in rms_norm.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Where to make its folder. Default: among the package's ops, or here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the folder of a new op, which passes its check as it stands, for you to edit."""
    made = new_op(name, to)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(f"{made.folder}: {', '.join(made.files)}")
    typer.echo("edit reference.py first, then what is marked EDIT; at any time run")
    for command in made.next_commands:
        typer.echo(f"  {command}")
    typer.echo("the guide is docs/guides/write-a-kernel.md")
