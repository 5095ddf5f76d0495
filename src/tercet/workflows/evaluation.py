"""evaluate: compares packed checkpoints with the uncompressed model."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import weights_sha256
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.checkpoints.tokenizer_file import read_tokenizer
from tercet.compress.text import describe
from tercet.errors import CheckpointError, PlanError, UnsupportedError
from tercet.evaluate.compare import Logits, compare
from tercet.evaluate.size import measure_size
from tercet.evaluate.text import default_text, windows
from tercet.models.decoder.kv_cache import check_kv_cache_dtype
from tercet.models.device import resolve_device
from tercet.models.position_limit import check_positions
from tercet.records import Environment, Record
from tercet.runtime import load
from tercet.workflows.compressed_from import compressed_from
from tercet.workflows.next_token_model import check_next_token
from tercet.workflows.teacher import teacher as open_teacher

TEACHER = "teacher"


def evaluate(
    directories: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path | None = None,
    text: str | Path | None = None,
    length: int = 1024,
    count: int | None = 16,
    device: torch.device | str | None = None,
    kv_cache_dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Measure the perplexity, divergence from the teacher, and size of packed checkpoints.

    Args:
        directories: packed checkpoints made from the same model.
        teacher: the uncompressed model; None for the model that the checkpoints' manifests name;
            "none" for no comparison.
        text: a UTF-8 text file or JSON lines with a key text, also gzipped; None for the text that
            ships with the package.
        length: window length in tokens; windows do not overlap.
        count: number of windows, from the beginning of the text; None for all.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one. Activations are
            float32 on either.
        kv_cache_dtype: how the checkpoints keep keys and values, as `tercet.load` takes it; the
            teacher keeps none.
        progress: a function called with (finished windows, total windows).

    Returns:
        A record for the teacher, if there is one, followed by one record for each checkpoint.

    Raises:
        PlanError: no checkpoint, or no window.
        UnsupportedError: there is no such device or dtype of a cache, or a checkpoint's
            architecture is not one that the decoder runs, which alone has such caches; or a
            checkpoint predicts no next token.
        CheckpointError: without `teacher`, the model that the manifests name has other weights now,
            or they name several.
    """
    check_kv_cache_dtype(kv_cache_dtype)
    target = resolve_device(device)
    given = [directories] if isinstance(directories, str | Path) else list(directories)
    if not given:
        raise PlanError("no checkpoint to evaluate: give at least one")
    if length < 2 or (count is not None and count < 1):
        raise PlanError(
            f"{count} windows of {length} tokens: give at least 1, or None for all, of at least 2"
        )
    checkpoints = {str(directory): open_packed(directory) for directory in given}
    for checkpoint in checkpoints.values():
        check_next_token(checkpoint)
    path = Path(text) if text is not None else default_text()
    ids = _read_windows(list(checkpoints.values()), path, length, count)
    if teacher is None:
        source = compressed_from(list(checkpoints.values()))
    else:
        source = None if teacher == "none" else open_source(teacher)
        if source is not None:
            first = next(iter(checkpoints.values())).directory
            _check_teacher(source, first / "tokenizer.json", ids)
    reference = "none" if source is None else str(teacher or source.reference)
    opened = nullcontext() if source is None else open_teacher(source, target)
    with opened as teacher_logits:
        students = {name: student(name, target, kv_cache_dtype) for name in checkpoints}
        qualities = compare(ids, students, teacher_logits, progress)
    on_gpu = target.type == "cuda"
    environment = Environment.here(torch.cuda.get_device_name(target) if on_gpu else None)
    settings = {
        "text": path.name,
        "text_sha256": describe(ids).sha256,
        "teacher": reference,
        "window_tokens": length,
        "stride_tokens": length,
        "windows": len(ids),
        "device": target.type,
    }
    records: list[Record] = []
    for name, quality in qualities.items():
        metrics = quality.metrics()
        if name in checkpoints:
            metrics |= measure_size(checkpoints[name]).metrics()
        subject = name if name in checkpoints else reference
        role = {"role": "student" if name in checkpoints else TEACHER}
        if name in checkpoints and kv_cache_dtype is not None:
            role["kv_cache_dtype"] = kv_cache_dtype
        if name in checkpoints and (weights := weights_sha256(checkpoints[name].directory)):
            role["weights_sha256"] = weights
        records.append(
            Record(
                kind="evaluation",
                subject=subject,
                settings={**settings, **role},
                metrics=metrics,
                environment=environment,
            )
        )
    return records


def _read_windows(
    checkpoints: Sequence[PackedCheckpoint], text: Path, length: int, count: int | None
) -> Tensor:
    """Windows of ids that are what each of the checkpoints makes of the text.

    Raises:
        CheckpointError: their tokenizers do not agree.
        PlanError: a model has fewer positions.
    """
    for checkpoint in checkpoints:
        check_positions(checkpoint.config, length, str(checkpoint.directory))
    first, *others = (checkpoint.directory / "tokenizer.json" for checkpoint in checkpoints)
    ids = windows(text, first, length, count)
    for other in others:
        same = other.is_file() and other.read_bytes() == first.read_bytes()
        if not same and not torch.equal(windows(text, other, length, count), ids):
            raise CheckpointError(
                f"{other.parent}: its tokenizer makes other tokens of {text.name} than that of "
                f"{first.parent}: evaluate models of different tokenizers in runs of their own"
            )
    return ids


def _check_teacher(source: ModelSource, tokenizer: Path, ids: Tensor) -> None:
    """Ids [windows, length] must be for a teacher what they are by the checkpoints' tokenizer.

    Raises:
        CheckpointError: they are other tokens, or none.
        PlanError: the teacher has fewer positions.
    """
    name = source.reference
    check_positions(source.config, ids.shape[1], name)
    made_from = "give --teacher the model that the checkpoints were made from"
    vocabulary, largest = source.config.get("vocab_size"), int(ids.max())
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise CheckpointError(
            f"{name}: has token ids below {vocabulary}, and the checkpoints' tokenizer makes "
            f"{largest} of the text: {made_from}"
        )
    with TemporaryDirectory() as folder:
        source.save_companions(folder)
        own = Path(folder) / "tokenizer.json"
        # without one, the checkpoints' is the only one there is
        if not own.is_file():
            return
        mine, theirs = read_tokenizer(own, name), read_tokenizer(tokenizer)
    for token in cast("list[int]", torch.unique(ids).tolist()):
        if mine.id_to_token(token) != theirs.id_to_token(token):
            raise CheckpointError(
                f"{name}: token id {token} is {mine.id_to_token(token)!r} there and "
                f"{theirs.id_to_token(token)!r} in the checkpoints, so that divergence from it "
                f"means nothing: {made_from}"
            )


def student(directory: str, device: torch.device, kv_cache_dtype: str | None = None) -> Logits:
    """Load a packed checkpoint as a function from token ids [B, T] to logits [B, T, V]."""
    try:
        return load(directory, torch.float32, device, kv_cache_dtype=kv_cache_dtype).logits
    except UnsupportedError:
        if kv_cache_dtype is not None:
            raise
        # not of those that the lean decoder runs
        from transformers import AutoModelForCausalLM

    model = cast(Any, AutoModelForCausalLM.from_pretrained(directory)).to(device)

    def logits(ids: Tensor) -> Tensor:
        return model(input_ids=ids.to(device), use_cache=False).logits

    return logits
