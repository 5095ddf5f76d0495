"""The option that says where a command computes; without torch."""

from typing import Annotated

import typer

Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or cuda:N. Default: the GPU, if there is one."),
]
