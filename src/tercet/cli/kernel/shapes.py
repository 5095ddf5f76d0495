"""tercet kernel shapes OP."""

from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.options.op import OpName
from tercet.cli.show import Json, console, mebibytes, print_json, say
from tercet.harness.workloads.shapes import shapes
from tercet.ops.discover import find


def shapes_command(
    op: OpName,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model of the catalog (may be repeated). Default: all."),
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(help="Number of GPUs that share each layer.")] = 1,
    tokens: Annotated[int | None, typer.Option(help="Tokens per call. Default: 16384.")] = None,
    as_json: Json = False,
) -> None:
    """Show the shapes that an op has in published models."""
    found = shapes(find(op), tuple(model or ()), tensor_parallel, tokens)
    if as_json:
        print_json([shape.model_dump(mode="json") for shape in found])
        return
    if not found:
        say(
            f"op {op!r} declares no shapes: give its Op a `shapes`, a function of the model's shape"
        )
        return
    table = Table(title=f"{op}: calls on one of {tensor_parallel} GPUs")
    for column in ("call", "sizes", "dtype", "options"):
        table.add_column(column)
    table.add_column("memory", justify="right")
    for shape in found:
        table.add_row(
            shape.workload,
            " ".join(f"{axis}={size}" for axis, size in shape.sizes.items()),
            shape.dtype,
            " ".join(f"{name}={value}" for name, value in shape.options.items()),
            mebibytes(shape.size_bytes) + (" > int32" if shape.elements > 2**31 else ""),
        )
    console.print(table)
