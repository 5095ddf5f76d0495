"""A text file as token ids, for calibration and evaluation alike."""

import gzip
import zlib
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tercet.errors import CheckpointError


def text_tokens(path: Path, tokenizer: Path) -> Tensor:
    """Token ids [tokens] of a UTF-8 text file (.gz allowed), tokenized once, no special tokens.

    Args:
        path: the text.
        tokenizer: a tokenizer.json.

    Raises:
        CheckpointError: the text cannot be read, or there is no tokenizer.
    """
    if not tokenizer.exists():
        raise CheckpointError(
            f"{tokenizer}: missing, so text cannot be tokenized; a model without a tokenizer is "
            f"calibrated on a safetensors file with input_ids [sequences, length]"
        )
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    encoder = Tokenizer.from_file(str(tokenizer))
    # a file may ask for the truncation and padding that its model was once served with
    encoder.no_truncation()
    encoder.no_padding()
    return torch.tensor(encoder.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
