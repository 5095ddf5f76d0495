"""A text file as token ids, for calibration and evaluation alike."""

import gzip
import zlib
from pathlib import Path

import torch
from torch import Tensor

from tercet.checkpoints.tokenizer_file import read_tokenizer
from tercet.errors import CheckpointError


def text_tokens(path: Path, tokenizer: Path, model: str | None = None) -> Tensor:
    """Token ids [tokens] of a UTF-8 text file (.gz allowed), tokenized once, no special tokens.

    Args:
        path: the text.
        tokenizer: a tokenizer.json.
        model: what the user called the model, where `tokenizer` is a copy that lies elsewhere.

    Raises:
        CheckpointError: the text cannot be read, or there is no tokenizer.
    """
    if not tokenizer.exists():
        raise CheckpointError(
            f"{tokenizer if model is None else f'{model}: tokenizer.json'}: missing, so text "
            f"cannot be tokenized; a model without a tokenizer is calibrated on a safetensors file "
            f"with input_ids [sequences, length]"
        )
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    ids = read_tokenizer(tokenizer, model).encode(text, add_special_tokens=False).ids
    return torch.tensor(ids, dtype=torch.int64)
