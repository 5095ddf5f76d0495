"""Saving a packed model by transformers, so that what it wrote is vouched for."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoints.packed.layout import INDEX_NAME, Manifest
from tercet.checkpoints.packed.write import vouch
from tercet.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SavePretrained:
    """In the place of PreTrainedModel's `save_pretrained`: manifest and seal are made anew.

    Those of a directory that the model was read from would be of other bytes.
    """

    def __init__(self, model: "PreTrainedModel", manifest: Manifest | None) -> None:
        self._model, self._manifest = model, manifest

    def __call__(
        self,
        save_directory: str | PathLike[str],
        is_main_process: bool = True,
        *arguments: Any,
        variant: str | None = None,
        **named: Any,
    ) -> None:
        """As transformers has it. UnsupportedError for a variant, whose names nobody reads."""
        if variant is not None:
            raise UnsupportedError(
                f"variant={variant!r}: packed weights have one form; leave variant out"
            )
        kind = type(self._model)
        kind.save_pretrained(self._model, save_directory, is_main_process, *arguments, **named)
        directory = Path(save_directory)
        if not is_main_process or not (directory / "config.json").is_file():
            return
        # transformers leaves the index of shards that it removed
        if (directory / "model.safetensors").is_file():
            (directory / INDEX_NAME).unlink(missing_ok=True)
        vouch(directory, self._manifest)
