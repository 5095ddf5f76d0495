"""Calibration tokens: text file -> `calibration_ids.safetensors`, shared by every method.

python calibration.py TEACHER_DIR TEXT[.gz] IDS.safetensors

The whole text is one tokenization, without special tokens. Sequence i of n starts at token
`i * (total - length) // (n - 1)`: evenly spaced from the first token to the last, no randomness.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

SEQUENCES = 64
LENGTH = 512
IDS = "input_ids"


def read_text(path: Path) -> str:
    """UTF-8 text of a plain or gzipped file."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def tokenize(teacher: Path, text: str) -> Tensor:
    """Tokens of the whole text, int64 `[total]`, no special tokens added."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    return torch.tensor(tokenizer(text, add_special_tokens=False)[IDS], dtype=torch.int64)


def evenly_spaced(tokens: Tensor, sequences: int, length: int) -> Tensor:
    """`[sequences, length]` slices of `tokens [total]`; they overlap only if the text is short."""
    last = tokens.numel() - length
    starts = [i * last // (sequences - 1) for i in range(sequences)]
    return torch.stack([tokens[start : start + length] for start in starts])


def token_hash(ids: Tensor) -> str:
    """SHA-256 of the ids as little-endian int64, shortened to 16 hex digits."""
    return hashlib.sha256(ids.to(torch.int64).contiguous().numpy().tobytes()).hexdigest()[:16]


def load_calibration(path: Path) -> Tensor:
    """Calibration ids, int64 `[sequences, length]`."""
    return load_file(path)[IDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("ids", type=Path)
    arguments = parser.parse_args()
    ids = evenly_spaced(tokenize(arguments.teacher, read_text(arguments.text)), SEQUENCES, LENGTH)
    save_file({IDS: ids}, arguments.ids)
    print(f"{tuple(ids.shape)} tokens, hash {token_hash(ids)}")


if __name__ == "__main__":
    main()
