"""A text file as token ids, for calibration and evaluation alike."""

from pathlib import Path

import torch
from torch import Tensor

from tercet.checkpoints.text_file import read_texts
from tercet.checkpoints.tokenizer_file import read_tokenizer
from tercet.errors import CheckpointError

# as perplexity is measured of WikiText-2 since GPTQ (arXiv:2210.17323)
_BETWEEN = "\n\n"


def text_tokens(path: Path, tokenizer: Path, model: str | None = None) -> Tensor:
    """Token ids [tokens] of a text file, tokenized once, no special tokens.

    Documents of JSON lines become one text, an empty line between them.

    Args:
        path: as `read_texts` takes it.
        tokenizer: a tokenizer.json.
        model: what the user called the model, where `tokenizer` is a copy that lies elsewhere.

    Raises:
        CheckpointError: there is no tokenizer.
        PlanError: the text cannot be read.
    """
    if not tokenizer.exists():
        raise CheckpointError(
            f"{tokenizer if model is None else f'{model}: tokenizer.json'}: missing, so text "
            f"cannot be tokenized; a model without a tokenizer is calibrated on a safetensors file "
            f"with input_ids [sequences, length]"
        )
    text = _BETWEEN.join(read_texts(path))
    ids = read_tokenizer(tokenizer, model).encode(text, add_special_tokens=False).ids
    return torch.tensor(ids, dtype=torch.int64)
