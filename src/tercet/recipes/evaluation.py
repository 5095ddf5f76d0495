"""evaluate: what compression cost, measured against the uncompressed model."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.packed import open_packed
from tercet.checkpoints.source import open_source
from tercet.evaluate.compare import Logits, compare
from tercet.evaluate.size import measure_size
from tercet.evaluate.text import default_text, windows
from tercet.models import supported_architecture
from tercet.recipes.teacher import teacher as open_teacher
from tercet.records import Environment, Record
from tercet.runtime import load

TEACHER = "teacher"


def evaluate(
    directories: str | Path | Sequence[str | Path],
    *,
    teacher: str | None = None,
    text: str | Path | None = None,
    length: int = 1024,
    count: int | None = 16,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Perplexity, divergence from the teacher and size of packed checkpoints.

    Args:
        directories: packed checkpoints made from the same model.
        teacher: the uncompressed model; None for the one that the manifest names, "none" for no
            comparison.
        text: a UTF-8 text file, .gz allowed; None for the one that ships with the package.
        length: tokens in a window; windows do not overlap.
        count: how many windows from the beginning; None for all.
        progress: told (windows done, windows in all).

    Returns:
        One record a checkpoint, and one for the teacher, first.
    """
    given = [directories] if isinstance(directories, str | Path) else list(directories)
    checkpoints = {str(directory): open_packed(directory) for directory in given}
    path = Path(text) if text is not None else default_text()
    ids = windows(path, Path(given[0]) / "tokenizer.json", length, count)
    reference = teacher
    if reference is None:
        manifest = next(iter(checkpoints.values())).manifest
        reference = manifest.source.reference if manifest is not None else "none"
    opened = open_teacher(open_source(reference)) if reference != "none" else nullcontext()
    with opened as teacher_logits:
        students = {name: student(name) for name in checkpoints}
        qualities = compare(ids, students, teacher_logits, progress)
    environment = Environment.here()
    settings = {
        "text": path.name,
        "teacher": reference,
        "window_tokens": length,
        "stride_tokens": length,
        "windows": len(ids),
    }
    records: list[Record] = []
    for name, quality in qualities.items():
        metrics = quality.metrics()
        if name in checkpoints:
            metrics |= measure_size(checkpoints[name]).metrics()
        subject = name if name in checkpoints else reference
        records.append(
            Record(
                kind="evaluation",
                subject=subject,
                settings={**settings, "role": "student" if name in checkpoints else TEACHER},
                metrics=metrics,
                environment=environment,
            )
        )
    return records


def student(directory: str) -> Logits:
    """A packed checkpoint as a function from ids [B, T] to logits [B, T, V]."""
    if supported_architecture(open_packed(directory).config):
        return load(directory).logits
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)

    def logits(ids: Tensor) -> Tensor:
        return model(input_ids=ids, use_cache=False).logits

    return logits
