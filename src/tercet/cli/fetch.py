"""tercet fetch NAME."""

from typing import Annotated

import typer

from tercet.checkpoints.fetch import FETCHABLE, fetch
from tercet.cli.show import Json, print_json, say


def fetch_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(FETCHABLE)}.")],
    verify: Annotated[bool, typer.Option(help="Check the hash of a cached copy too.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a named model into the cache; a second call downloads nothing."""
    path = fetch(name, say, verify=verify)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(path)
