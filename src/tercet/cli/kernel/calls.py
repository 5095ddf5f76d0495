"""Which calls of an op are meant: shapes typed by hand, or the op's calls in published models."""

from dataclasses import replace
from typing import Annotated

import typer

from tercet.cli.kernel.shape import parse_workload
from tercet.errors import UnsupportedError
from tercet.harness.given import complete_sizes
from tercet.harness.shapes import workloads_of
from tercet.kernel.contract import Op, Workload
from tercet.kernel.tuned import Direction

Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help='Sizes of the axes: "M=16384,N=8192".')
]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="The op's calls in this model of the catalog.")
]
TensorParallel = Annotated[int, typer.Option(help="Over how many GPUs a --model is split.")]
Tokens = Annotated[int | None, typer.Option(help="Tokens in one call of a --model.")]
Directions = Annotated[
    list[str] | None, typer.Option("--direction", help="forward or backward. Default: both.")
]
GivenDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="bfloat16, float16 or float32. Default: bfloat16; a model's call: its own."
    ),
]
_USUAL = "bfloat16"


def chosen_workloads(
    op: Op,
    shapes: list[str] | None,
    models: list[str] | None,
    *,
    dtype: str | None,
    options: list[str] | None,
    tensor_parallel: int = 1,
    tokens: int | None = None,
) -> tuple[Workload, ...]:
    """The workloads that were asked for. UnsupportedError where none was, or an axis has no size.

    A model's calls keep their own dtype and options, except those that are given.
    """
    found = list[Workload]()
    for shape in shapes or ():
        workload = parse_workload(op, shape, dtype or _USUAL, options)
        complete_sizes(op, workload.sizes)
        found.append(workload)
    given = parse_workload(op, "", dtype or _USUAL, options)
    for model in models or ():
        for call in workloads_of(op, model, tensor_parallel, tokens):
            asked = {**call.options, **given.options}
            kind = given.dtype if dtype is not None else call.dtype
            found.append(replace(call, dtype=kind, options=asked))
    if not found:
        raise UnsupportedError(
            f"nothing to run: give --shape {','.join(f'{a.name}=1024' for a in op.axes)} or "
            "--model with a name of the catalog"
        )
    return tuple(found)


def chosen_directions(names: list[str] | None) -> tuple[Direction, ...]:
    """The directions of those names. UnsupportedError for another word."""
    directions = list[Direction]()
    for name in names or ("forward", "backward"):
        match name:
            case "forward" | "backward":
                directions.append(name)
            case _:
                raise UnsupportedError(f"direction {name!r}: allowed are forward and backward")
    return tuple(directions)
