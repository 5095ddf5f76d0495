"""open_source: opens a source model by directory, file or name."""

import re
from pathlib import Path

from tercet.checkpoints.named_path import named_path
from tercet.checkpoints.sources.fetch import FETCHABLE, Progress, fetch
from tercet.checkpoints.sources.gguf_file import GgufFile
from tercet.checkpoints.sources.hub import hub_directory
from tercet.checkpoints.sources.model_source import ModelSource
from tercet.checkpoints.sources.safetensors_directory import SafetensorsDirectory
from tercet.errors import CheckpointError, unknown_name

__all__ = ["ModelSource", "open_source"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(reference: str | Path, progress: Progress | None = None) -> ModelSource:
    """Open a source model without reading its weights.

    Args:
        reference: a Hugging Face model directory, a GGUF file, a name that `fetch` knows (a missing
            model is downloaded), or a hub name `org/name`. The first kind that matches is used.
        progress: a function called with a one-line message when a download begins.

    Raises:
        CheckpointError: the reference is none of these, or the model is missing, damaged, already
            quantized or of an unknown kind.
    """
    path = named_path(reference)
    # "." says nothing once it is read in another directory
    text = str(reference if path == Path(reference) else path)
    if path.exists():
        return _open_path(path, text)
    if text in FETCHABLE:
        return _open_path(fetch(text, progress), text)
    if path.suffix == ".gguf":
        raise CheckpointError(f"{text}: no such file")
    if isinstance(reference, str) and _HUB_NAME.fullmatch(text):
        return SafetensorsDirectory(hub_directory(text), text)
    raise CheckpointError(
        f"{text!r} is no directory, no GGUF file and no hub name (org/name): "
        f"{unknown_name('model', text, FETCHABLE)}"
    )


def _open_path(path: Path, reference: str) -> ModelSource:
    return SafetensorsDirectory(path, reference) if path.is_dir() else GgufFile(path, reference)
