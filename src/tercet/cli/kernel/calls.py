"""The options that select workloads: shapes typed by hand, or an op's calls in catalog models."""

from dataclasses import replace
from typing import Annotated

import typer

from tercet.cli.kernel.shape import parse_workload
from tercet.errors import UnsupportedError
from tercet.harness.workloads.arguments import complete_sizes
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.contract import Op, Workload
from tercet.kernel.tuned import Direction

Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help='Axis sizes, such as "M=16384,N=8192" (may be repeated).'),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", help="Use the op's shapes in this model of the catalog (may be repeated)."
    ),
]
TensorParallel = Annotated[
    int, typer.Option(help="With --model: the number of GPUs that share each layer.")
]
Tokens = Annotated[int | None, typer.Option(help="With --model: tokens per call.")]
Directions = Annotated[
    list[str] | None,
    typer.Option("--direction", help="forward or backward (may be repeated). Default: both."),
]
GivenDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Data type: bfloat16, float16 or float32. Default: with --model that of the model's "
        "call, else bfloat16.",
    ),
]
_USUAL = "bfloat16"


def select_workloads(
    op: Op,
    shapes: list[str] | None,
    models: list[str] | None,
    *,
    dtype: str | None,
    options: list[str] | None,
    tensor_parallel: int = 1,
    tokens: int | None = None,
) -> tuple[Workload, ...]:
    """Build the workloads that the options select.

    A model's calls keep their own dtype and options, except where `dtype` or `options` override
    them.

    Raises:
        UnsupportedError: no workload is selected, or an axis has no size.
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
    if not found and models:
        raise UnsupportedError(
            f"op {op.name!r} has no call in {', '.join(models)}: give --shape "
            f"{','.join(f'{a.name}=1024' for a in op.axes)}"
        )
    if not found:
        raise UnsupportedError(
            f"nothing to run: give --shape {','.join(f'{a.name}=1024' for a in op.axes)} or "
            "--model with a name of the catalog"
        )
    return tuple(found)


def parse_directions(names: list[str] | None) -> tuple[Direction, ...]:
    """Parse direction names, by default both; UnsupportedError for an unknown name."""
    directions = list[Direction]()
    for name in names or ("forward", "backward"):
        match name:
            case "forward" | "backward":
                directions.append(name)
            case _:
                raise UnsupportedError(f"direction {name!r}: allowed are forward and backward")
    return tuple(directions)
