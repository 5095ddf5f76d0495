"""Calibration text to token sequences."""

import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.named_path import is_path
from tercet.checkpoints.packed.layout import CalibrationInfo
from tercet.checkpoints.text_tokens import text_tokens
from tercet.checkpoints.token_ids import check_ids, check_integers, read_token_ids
from tercet.compress.plan import Calibration
from tercet.errors import PlanError
from tercet.models.position_limit import check_positions


def default_text() -> Path:
    """The text that ships with the package: State of the Union addresses, public domain."""
    return Path(str(files("tercet.compress"))) / "text" / "state_of_the_union.txt.gz"


def read_calibration(
    calibration: str | Path | Tensor | None,
    tokenizer_directory: Path,
    wanted: Calibration,
    model: str | None = None,
    apart: Sequence[int] = (),
) -> Tensor:
    """Token ids [sequences, length]: those given, or of a file, or of the shipped text for None.

    Args:
        calibration: the ids, or the file.
        tokenizer_directory, wanted, model, apart: as `calibration_tokens` takes them.
    """
    if isinstance(calibration, Tensor):
        return check_integers(calibration, "calibration ids")
    path = calibration_file(calibration)
    return calibration_tokens(path, tokenizer_directory, wanted, model, apart)


def calibration_file(calibration: str | Path | None) -> Path:
    """The file of a calibration, the shipped text for None; PlanError where it is no path."""
    if calibration is None:
        return default_text()
    if not is_path(calibration):
        raise PlanError(
            f"a {type(calibration).__name__} in the place of calibration data: give the path of a "
            f"text, .jsonl or .safetensors file, or token ids as a tensor [sequences, length]"
        )
    return Path(calibration)


def calibration_tokens(
    path: Path,
    tokenizer_directory: Path,
    wanted: Calibration,
    model: str | None = None,
    apart: Sequence[int] = (),
) -> Tensor:
    """Token ids [sequences, length]: the file tokenized once, cut evenly spaced.

    Of a text that is too short they overlap, by half at most.

    Args:
        path: a text file or JSON lines (.gz allowed), or a safetensors file with `input_ids`
            [S, T].
        tokenizer_directory: where tokenizer.json lies.
        wanted: how many sequences of which length; a safetensors file is taken as it is.
        model: what the user called the model, where its tokenizer was copied for the run.
        apart: the sequences that overlap no other, since they measure what others are fitted to.
    """
    if path.suffix == ".safetensors":
        return read_token_ids(path)
    ids = text_tokens(path, tokenizer_directory / "tokenizer.json", model)
    starts = _starts(len(ids), wanted, sorted(apart))
    if starts is None:
        raise PlanError(
            f"{path}: {len(ids)} tokens, but the plan asks for {wanted.sequences} sequences of "
            f"{wanted.length}: give more text with --calibration or lower the plan's numbers"
        )
    return torch.stack([ids[start : start + wanted.length] for start in starts])


def _starts(tokens: int, wanted: Calibration, apart: Sequence[int]) -> list[int] | None:
    """Where sequences begin; None for a text in which they would overlap by more than half."""
    count, length = wanted.sequences, wanted.length
    if count * length <= tokens:
        return [i * (tokens // count) for i in range(count)]
    # runs of neighbours: within each they overlap, and the next one begins behind it
    runs = [last - first - 1 for first, last in pairwise([-1, *apart, count])]
    steps, first_ones = sum(max(run - 1, 0) for run in runs), sum(run > 0 for run in runs)
    left = tokens - length * len(apart)
    room = left - length * first_ones
    if room < 0 or 2 * left < (count - len(apart)) * length:
        return None
    starts, begin, done = list[int](), 0, 0
    for at, run in enumerate(runs):
        first = done
        for _ in range(run):
            starts.append(begin + room * done // max(steps, 1) - room * first // max(steps, 1))
            done += 1
        done -= run > 0
        begin = starts[-1] + length if run else begin
        if at < len(apart):
            starts.append(begin)
            begin += length
    return starts


def check_file(path: Path) -> None:
    """PlanError where there is no file to read; costs nothing, so it comes before all work."""
    if path.is_dir():
        raise PlanError(f"{path}: is a directory: give --calibration a text or safetensors file")
    if not path.is_file():
        raise PlanError(f"{path}: no such file: give --calibration a text or safetensors file")
    if not os.access(path, os.R_OK):
        raise PlanError(f"{path}: cannot be read: give --calibration another file")


def check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """PlanError unless tokens are ids [sequences, length], not empty, below `vocabulary`."""
    if tokens.ndim != 2 or not tokens.numel():
        raise PlanError(
            f"calibration ids have shape {list(tokens.shape)}: give [sequences, length], not empty"
        )
    check_ids(tokens, vocabulary, "calibration")


def check_fits(tokens: Tensor, config: Any, model: str, option: str = "--length") -> None:
    """PlanError where the model does not know a token of ids, or has fewer positions.

    Args:
        tokens: ids [sequences, length].
        config: the model's, of transformers.
        model: for the message.
        option: that says how long sequences are, for the message.
    """
    check_tokens(tokens, int(getattr(config, "vocab_size", 2**31)))
    check_positions(config, tokens.shape[-1], model, option)


def describe(tokens: Tensor) -> CalibrationInfo:
    """Shape and hash of token ids [sequences, length]."""
    digest = hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).hexdigest()
    return CalibrationInfo(sha256=digest, sequences=tokens.shape[0], length=tokens.shape[1])
