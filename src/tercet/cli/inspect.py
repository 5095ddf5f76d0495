"""tercet inspect DIR."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tercet.checkpoints.packed.layout import MANIFEST_NAME
from tercet.checkpoints.seal import verified
from tercet.checkpoints.sources.fetch import find_packed
from tercet.cli.show import Json, console, mebibytes, print_json, say
from tercet.workflows.inspection import inspect


def inspect_command(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of a packed checkpoint, or the name of one that `tercet fetch` knows."
        ),
    ],
    verify: Annotated[
        bool, typer.Option(help="Also read every tensor and check codes, scales and zero points.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a packed checkpoint's layers, formats, size and source model."""
    directory = find_packed(directory, say, demand=True)
    with verified(directory):
        found = inspect(directory, verify=verify)
    if as_json:
        print_json(found)
    else:
        _show(found, verify)
    if found["source"] is None:
        say(
            f"{directory}: no {MANIFEST_NAME}, so nothing vouches for these bytes: copy the "
            f"directory again if tercet wrote it"
        )
        raise typer.Exit(1)


def _show(found: dict[str, Any], verify: bool) -> None:
    size, source = found["size"], found["source"]
    table = Table(title=f"{found['directory']}: {found['architecture']}")
    for column in ("module", "format", "shape", "bits", "algorithm", "relative error"):
        table.add_column(column)
    for name, module in found["modules"].items():
        error = module["relative_error"]
        table.add_row(
            name,
            module["format"],
            "x".join(map(str, module["shape"])),
            f"{module['bits_per_weight']:.3f}",
            module["algorithm"] or "-",
            f"{error:.4f}" if error is not None else "-",
        )
    console.print(table)
    console.print(
        f"{mebibytes(size['disk_bytes'])} for {size['parameters'] / 1e6:.1f}M parameters: "
        f"{size['bits_per_weight']:.3f} bits a weight, {size['ratio_to_bf16']:.2f} times smaller "
        f"than bf16, {size['ratio_to_fp32']:.2f} than fp32; {found['kept']['tensors']} tensors kept"
    )
    if source is not None:
        console.print(f"made from {source['reference']}, sha256 {source['sha256']}")
    if verify and source is not None:
        console.print("every byte checked: whole")
    elif verify:
        console.print("codes, scales and zero points are such as their formats have")
