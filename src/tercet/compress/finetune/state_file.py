"""StateFile: what an interrupted training goes on from, in a file that is whole or not there."""

from pathlib import Path
from typing import Any

import torch

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import CheckpointError


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
        if not self._path.exists():
            return None
        try:
            return torch.load(self._path, map_location=self._device, weights_only=True)
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            raise CheckpointError(
                f"{self._path}: cannot be read ({error}): start anew with --overwrite"
            ) from error

    def save(self, state: dict[str, Any]) -> None:
        """As KeptState's."""
        write_atomic(self._path, lambda path: torch.save(state, path))
