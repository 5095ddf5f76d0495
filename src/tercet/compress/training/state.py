"""State: all that a training run needs to go on, in one file that is whole or not there."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.atomic import write_atomic
from tercet.compress.qat.student import Student
from tercet.errors import CheckpointError

_NAME = "state.pt"
_VERSION = 1


def save_state(
    directory: Path, step: int, student: Student, optimizer: torch.optim.Optimizer
) -> None:
    """Writes weights and optimizer after `step` steps; the state before stays until it is whole."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "version": _VERSION,
        "step": step,
        "parameters": {name: p.detach() for name, p in trained(student).items()},
        "optimizer": optimizer.state_dict(),
    }
    write_atomic(directory / _NAME, lambda path: torch.save(content, path))


def load_state(directory: Path, student: Student, optimizer: torch.optim.Optimizer) -> int:
    """Reads weights and optimizer back; how many steps were done, 0 where nothing was saved.

    Raises:
        CheckpointError: the state is damaged, or of another model.
    """
    path = directory / _NAME
    if not path.exists():
        return 0
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}): start anew with --overwrite"
        ) from error
    saved: dict[str, Tensor] = content["parameters"]
    here = trained(student)
    if content["version"] != _VERSION or saved.keys() != here.keys():
        raise CheckpointError(f"{path}: the state of another model: start anew with --overwrite")
    with torch.no_grad():
        for name, parameter in here.items():
            parameter.copy_(saved[name])
    optimizer.load_state_dict(content["optimizer"])
    return int(content["step"])


def trained(student: Student) -> dict[str, torch.nn.Parameter]:
    """Every trained parameter by name, tied ones once."""
    return {n: p for n, p in student.model.named_parameters() if p.requires_grad}
