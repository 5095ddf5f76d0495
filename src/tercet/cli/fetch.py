"""tercet fetch NAME."""

from typing import Annotated

import typer

from tercet.checkpoints.sources.fetch import FETCHABLE, fetch
from tercet.cli.show import Json, print_json, say


def fetch_command(
    name: Annotated[str, typer.Argument(help=f"Model to bring: {', '.join(FETCHABLE)}.")],
    verify: Annotated[bool, typer.Option(help="Also check the SHA-256 of a cached copy.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a model into the cache, unless it is there already, and print its path."""
    path = fetch(name, say, verify=verify)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(path)
