"""The options of commands that calibrate: on which text, in how long sequences."""

from pathlib import Path
from typing import Annotated

import typer

Calibration = Annotated[
    Path | None,
    typer.Option(
        help="Calibration data: a UTF-8 text file, a .jsonl file with a key text, or a "
        ".safetensors file with the tensor input_ids, one row of token ids per sequence. Default: "
        "a text that ships with tercet."
    ),
]
Length = Annotated[
    int | None, typer.Option(help="Tokens per calibration sequence. Default: the plan's.")
]
