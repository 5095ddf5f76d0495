"""Evaluation text to windows of tokens."""

import gzip
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tercet.errors import CheckpointError


def default_text() -> Path:
    """The text that ships with the package: chapters of Moby Dick, public domain."""
    return Path(str(files("tercet.evaluate"))) / "text" / "moby_dick.txt.gz"


def windows(path: Path, tokenizer: Path, length: int, count: int | None) -> Tensor:
    """Token ids [windows, length]: the file tokenized once, cut without overlap.

    Args:
        path: a UTF-8 text file, .gz allowed.
        tokenizer: a tokenizer.json.
        length: tokens in a window.
        count: how many windows from the beginning; None for all.

    Raises:
        CheckpointError: unreadable file, no tokenizer, or too little text for one window.
    """
    if not tokenizer.exists():
        raise CheckpointError(f"{tokenizer}: missing; evaluation on text needs the tokenizer")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    encoder = Tokenizer.from_file(str(tokenizer))
    # a file may ask for the truncation and padding that its model was once served with
    encoder.no_truncation()
    encoder.no_padding()
    ids = torch.tensor(encoder.encode(text, add_special_tokens=False).ids)
    found = len(ids) // length
    if found == 0:
        raise CheckpointError(f"{path}: {len(ids)} tokens are less than one window of {length}")
    return ids[: found * length].reshape(found, length)[:count]
