"""The option that says over how many devices a model is cut; without torch."""

from typing import Annotated

import typer

from tercet.errors import UnsupportedError

# that of `models.decoder.tensor_parallel.cut`, which needs torch
MOST_RANKS = 8


def _check(count: int) -> int:
    if not 1 <= count <= MOST_RANKS:
        raise UnsupportedError(f"--tensor-parallel {count}: must be 1 to {MOST_RANKS}")
    return count


TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        callback=_check,
        help="Cut every layer over so many GPUs (or processes on a CPU), which run the model "
        "together: 1 to 8.",
    ),
]
