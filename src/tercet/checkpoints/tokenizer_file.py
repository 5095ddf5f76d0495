"""A tokenizer.json, read so that it encodes a whole text and nothing more."""

from pathlib import Path

from tokenizers import Tokenizer

from tercet.errors import CheckpointError


def read_tokenizer(path: Path, model: str | None = None) -> Tokenizer:
    """Read a tokenizer.json, without the truncation and padding that it may ask for.

    transformers saves both with the tokenizer once a text was encoded with truncation=True or
    padding="max_length"; a prompt of 11 tokens would become 64 of them.

    Args:
        path: the tokenizer.json.
        model: what the user called the model, where `path` is a copy that lies elsewhere.

    Raises:
        CheckpointError: the file is not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except ValueError as error:
        where = path if model is None else f"{model}: tokenizer.json"
        raise CheckpointError(
            f"{where}: not a tokenizer ({error}): copy the file again from the model's source"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
