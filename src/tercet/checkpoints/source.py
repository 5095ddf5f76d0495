"""open_source: any way of naming a model to a ModelSource."""

import re
from pathlib import Path

from tercet.checkpoints.fetch import FETCHABLE, Progress, fetch
from tercet.checkpoints.gguf_file import GgufFile
from tercet.checkpoints.hub import hub_directory
from tercet.checkpoints.model_source import ModelSource
from tercet.checkpoints.safetensors_directory import SafetensorsDirectory
from tercet.errors import CheckpointError, unknown_name

__all__ = ["ModelSource", "open_source"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(reference: str | Path, progress: Progress | None = None) -> ModelSource:
    """Opens a model without reading its weights.

    Args:
        reference: a Hugging Face directory, a GGUF file, a name that `fetch` knows (it is fetched
            where it is not in the cache), or a hub name `org/name`; the first that fits.
        progress: is told in one line when a download begins.

    Errors:
        CheckpointError for a reference that is none of these, and for a model that is missing,
        damaged, quantized already or of an unknown kind.
    """
    path, text = Path(reference), str(reference)
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
