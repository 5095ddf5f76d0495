"""tercet import PATH --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.show import Json, console, mebibytes, print_json
from tercet.workflows.import_checkpoint import import_checkpoint
from tercet.workflows.inspection import inspect


def import_command(
    path: Annotated[Path, typer.Argument(help="Quantized checkpoint of another program.")],
    out: Annotated[Path, typer.Option("--out", help="Output directory.")],
    overwrite: Annotated[
        bool, typer.Option(help="Replace the checkpoint at the output directory if there is one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Convert a quantized checkpoint (GPTQ, AWQ, GGUF, BitNet, compressed-tensors) losslessly.

    The result is a packed checkpoint; no weight is quantized a second time.
    """
    import_checkpoint(path, out, overwrite=overwrite)
    found = inspect(out, verify=True)
    if as_json:
        print_json({"directory": str(out), "formats": found["formats"], "size": found["size"]})
        return
    formats = ", ".join(f"{count} x {name}" for name, count in found["formats"].items())
    console.print(f"{out}: {mebibytes(found['size']['disk_bytes'])}, {formats}", soft_wrap=True)
