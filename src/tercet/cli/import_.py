"""tercet import PATH --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, console, mebibytes, print_json
from tercet.recipes.import_run import import_checkpoint
from tercet.recipes.inspection import inspect


def import_command(
    path: Annotated[Path, typer.Argument(help="A quantized checkpoint of another program.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    overwrite: Annotated[bool, typer.Option(help="Replace what lies at the output.")] = False,
    as_json: Json = False,
) -> None:
    """Turn another program's quantized checkpoint into a packed one, without loss."""
    import_checkpoint(path, out, overwrite=overwrite)
    found = inspect(out, verify=True)
    if as_json:
        print_json({"directory": str(out), "formats": found["formats"], "size": found["size"]})
        return
    formats = ", ".join(f"{count} x {name}" for name, count in found["formats"].items())
    console.print(f"{out}: {mebibytes(found['size']['disk_bytes'])}, {formats}", soft_wrap=True)
