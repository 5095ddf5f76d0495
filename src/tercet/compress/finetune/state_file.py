"""StateFile: what an interrupted training goes on from, in a file that is whole or not there."""

from pathlib import Path
from typing import Any

import torch

from tercet.checkpoints.atomic import write_atomic
from tercet.compress.training.state import read_content, save_content


class StateFile:
    """A KeptState of `tune`.

    Args:
        path: of the file; it is there once something was saved.
        device: of the tensors that are loaded.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path, self._device = path, device

    def load(self) -> dict[str, Any] | None:
        """As KeptState's. CheckpointError where the file is damaged."""
        return read_content(self._path, self._device) if self._path.exists() else None

    def save(self, state: dict[str, Any]) -> None:
        """As KeptState's."""
        write_atomic(self._path, lambda path: save_content(state, path))
