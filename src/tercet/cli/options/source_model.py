"""The argument that names the source model of a command."""

from typing import Annotated

import typer

SourceModel = Annotated[
    str,
    typer.Argument(
        help="Source model: a directory, a name on the Hugging Face hub, a GGUF file, or a model "
        "downloaded by `tercet fetch`."
    ),
]
