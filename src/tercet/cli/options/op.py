"""The arguments that name an op, a shape, options, a dtype and a device; without torch."""

from typing import Annotated

import typer

OpName = Annotated[str, typer.Argument(help="Name of the op, or the path of its folder.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda. Default: cuda if a GPU is available, else cpu.")
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="RNG seed for the inputs. Default: a new seed, which the output shows.",
        min=0,
        max=2**62,
    ),
]
Shape = Annotated[str, typer.Option(help='Axis sizes, such as "M=16384,N=8192".')]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="Option of the op as NAME=VALUE, such as residual=True (may be repeated)."
    ),
]
Dtype = Annotated[str, typer.Option(help="Data type: bfloat16, float16 or float32.")]
