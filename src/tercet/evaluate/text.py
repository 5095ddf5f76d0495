"""Evaluation text to windows of tokens."""

from importlib.resources import files
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.text_tokens import text_tokens
from tercet.errors import CheckpointError


def default_text() -> Path:
    """The text that ships with the package: chapters of Moby Dick, public domain."""
    return Path(str(files("tercet.evaluate"))) / "text" / "moby_dick.txt.gz"


def windows(path: Path, tokenizer: Path, length: int, count: int | None) -> Tensor:
    """Token ids [windows, length]: the file tokenized once, cut without overlap.

    Args:
        path: a UTF-8 text file or JSON lines with a key text, .gz allowed.
        tokenizer: a tokenizer.json.
        length: tokens in a window.
        count: how many windows from the beginning; None for all.

    Raises:
        CheckpointError: no tokenizer, or too little text for one window.
        PlanError: unreadable file.
    """
    ids = text_tokens(path, tokenizer)
    found = len(ids) // length
    if found == 0:
        raise CheckpointError(f"{path}: {len(ids)} tokens are less than one window of {length}")
    return ids[: found * length].reshape(found, length)[:count]
