"""Standard output: text that its encoding lacks, and a disk that takes no more of it."""

import os
import sys
from io import TextIOWrapper


def replace_unknown_characters() -> None:
    """Have a question mark written for a character that the terminal's encoding lacks.

    A model may generate any character; the text around it is of more use than a traceback.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def drop_unwritten_output() -> None:
    """Give up what a full disk does not take: the interpreter would try and fail again at its end.

    Nothing more is written to standard output then.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
