"""tercet kernel new NAME."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, print_json
from tercet.errors import UnsupportedError
from tercet.harness.new_op import PATTERNS, new_op


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the new op, such as rms_norm.")],
    to: Annotated[
        Path | None,
        typer.Option(
            help="Directory in which to create the op's folder. Default: src/tercet/ops where the "
            "current directory lies in Tercet's source checkout, else the current directory."
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="Copy this op, the nearest to yours, instead of the template."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="Copy the op that shows this pattern: "
            f"{', '.join(f'{kind} ({op})' for kind, op in PATTERNS.items())}."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create the folder of a new op from a template that already passes its check."""
    if pattern is not None and (like is not None or pattern not in PATTERNS):
        raise UnsupportedError(
            f"--pattern {pattern}: it may be {', '.join(PATTERNS)}, without --like"
        )
    made = new_op(name, to, like=PATTERNS[pattern] if pattern is not None else like)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(f"{made.folder}: {', '.join(made.files)}")
    marked = "what is marked EDIT" if like is pattern is None else "every file"
    typer.echo(f"edit reference.py first, then {marked}; at any time run")
    for command in made.next_commands:
        typer.echo(f"  {command}")
    typer.echo("the guide is docs/guides/write-a-kernel.md")
