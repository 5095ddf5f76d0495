"""State: all that a training run needs to go on, in files that are whole or not there.

One process keeps `state.pt`. Of several, each keeps its shard, `state-STEP-RANK-of-WORLD_SIZE.pt`,
in the directory that they all see; the shards before go once all have written theirs.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.atomic import write_atomic
from tercet.compress.qat.sharding.weights import local
from tercet.compress.qat.student import Student
from tercet.compress.training.group import Group
from tercet.errors import CheckpointError

_NAME = "state.pt"
_VERSION = 2


def save_state(
    directory: Path, step: int, student: Student, optimizer: torch.optim.Optimizer, group: Group
) -> None:
    """Writes weights and optimizer after `step` steps; the state before stays until it is whole."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "version": _VERSION,
        "step": step,
        "parameters": {name: local(p.detach()) for name, p in trained(student).items()},
        "optimizer": optimizer.state_dict(),
    }
    path = directory / _name(step, group)
    write_atomic(path, lambda path: save_content(content, path))
    group.barrier()
    for old in directory.glob(f"state-*-{group.rank}-of-*.pt"):
        if old != path:
            old.unlink()


def load_state(
    directory: Path, student: Student, optimizer: torch.optim.Optimizer, group: Group
) -> int:
    """Reads weights and optimizer back; how many steps were done, 0 where nothing was saved.

    Raises:
        CheckpointError: the state is damaged, or of another model, number of devices or version.
    """
    path = _newest(directory, group)
    if path is None:
        return 0
    content = read_content(path, "cpu", mapped=True)
    if content["version"] != _VERSION:
        raise CheckpointError(
            f"{path}: a state of version {content['version']}, where this Tercet reads version "
            f"{_VERSION}: finish it with the Tercet that began it, or start anew with --overwrite"
        )
    saved: dict[str, Tensor] = content["parameters"]
    here = trained(student)
    if saved.keys() != here.keys():
        raise CheckpointError(f"{path}: the state of another model: start anew with --overwrite")
    with torch.no_grad():
        for name, parameter in here.items():
            local(parameter).copy_(saved[name])
        optimizer.load_state_dict(content["optimizer"])
    return int(content["step"])


def save_content(content: dict[str, Any], path: Path) -> None:
    """Saves tensors in a file; OSError, with its reason, where the file cannot grow."""
    try:
        torch.save(content, path)
    except RuntimeError:
        # torch says where its own code failed; the file fails again here, with the reason
        with path.open("ab") as file:
            file.write(bytes(1 << 20))
        raise


def read_content(path: Path, device: torch.device | str, *, mapped: bool = False) -> dict[str, Any]:
    """What was saved in a file of a run's state; CheckpointError where it is damaged.

    Args:
        path: of the file.
        device: of the tensors.
        mapped: whether they are mapped from the file and not read, on the host alone.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True, mmap=mapped)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}): start anew with --overwrite"
        ) from error


def trained(student: Student) -> dict[str, torch.nn.Parameter]:
    """Every trained parameter by name, tied ones once."""
    return {n: p for n, p in student.model.named_parameters() if p.requires_grad}


def _name(step: int, group: Group) -> str:
    if group.world_size == 1:
        return _NAME
    return f"state-{step:08d}-{group.rank}-of-{group.world_size}.pt"


def _newest(directory: Path, group: Group) -> Path | None:
    """This process's shard of the last state that is whole; None where nothing was saved."""
    names = {path.name for path in directory.glob("state*.pt")}
    found = [
        int(match[1])
        for match in (re.fullmatch(r"state-(\d+)-0-of-\d+\.pt", name) for name in names)
        if match is not None
    ]
    if group.world_size == 1 and _NAME in names:
        return directory / _NAME
    for step in sorted(found, reverse=True):
        shards = {
            f"state-{step:08d}-{rank}-of-{group.world_size}.pt" for rank in range(group.world_size)
        }
        if shards <= names:
            return directory / _name(step, group)
    if names:
        raise CheckpointError(
            f"{directory}: no whole state of {group.world_size} processes among "
            f"{', '.join(sorted(names))}: resume with as many processes as began, or start anew "
            f"with --overwrite"
        )
    return None
