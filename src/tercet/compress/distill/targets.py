"""Targets: a teacher's most likely next tokens on disk, so that training runs without it.

A directory of `targets.json` and shards in safetensors, each of some sequences [S, T]:

    ids      int32    [S, T, k]    the k most likely next tokens, the likeliest first
    log_p    float16  [S, T, k]    their log probabilities, softmax over all V at the temperature
    tail     float32  [S, T]       the probability of all others together, summed from their own

Shards are written whole, each with a note of its SHA-256; targets.json, written last, makes them
count. An interrupted writing goes on behind the last whole shard.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import load, save
from torch import Tensor

from tercet.checkpoints.atomic import write_atomic
from tercet.compress.qat.student import Student
from tercet.compress.training.sequences import Sequences
from tercet.errors import CheckpointError

_NOTE = "targets.json"
_TOKENS = 256


class TargetsIdentity(BaseModel):
    """What targets are of; they serve only a run of the same.

    Attributes:
        version: of the layout above.
        teacher_sha256: of the teacher's weight files.
        tokens_sha256: of tokens.bin.
        length: tokens in a sequence.
        k, temperature: above.
        precision: of the teacher's products.
        shard: sequences in a shard.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 2
    teacher_sha256: str
    tokens_sha256: str
    length: int
    k: int
    temperature: float
    precision: str
    shard: int = 64


class TargetsNote(BaseModel):
    """targets.json: the identity, and the SHA-256 of each shard."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: TargetsIdentity
    shards: tuple[str, ...]


def write_targets(
    directory: Path,
    identity: TargetsIdentity,
    teacher: Student,
    sequences: Sequences,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> None:
    """Writes the targets of all of the data's sequences; told (sequences done, in all).

    Raises:
        CheckpointError: targets of something else lie there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    started = directory / "identity.json"
    if started.exists():
        _check(TargetsIdentity.model_validate_json(started.read_bytes()), identity, directory)
    else:
        write_atomic(started, identity.model_dump_json(indent=1).encode())
    digests: list[str] = []
    for first in range(0, sequences.count, identity.shard):
        last = min(first + identity.shard, sequences.count)
        note = directory / f"shard-{len(digests):05d}.sha256"
        if not note.exists():
            parts = [_of(teacher, sequences.read([at]), identity) for at in range(first, last)]
            data = save({name: torch.cat([p[name] for p in parts]) for name in parts[0]})
            write_atomic(note.with_suffix(".safetensors"), data)
            write_atomic(note, hashlib.sha256(data).hexdigest().encode())
        digests.append(note.read_text())
        progress(last, sequences.count)
    whole = TargetsNote(identity=identity, shards=tuple(digests))
    write_atomic(directory / _NOTE, whole.model_dump_json(indent=1).encode())


@torch.no_grad()
def _of(teacher: Student, ids: Tensor, identity: TargetsIdentity) -> dict[str, Tensor]:
    """Targets of ids [1, T]."""
    hidden = teacher.hidden(ids.to(teacher.device))[0].float()
    head = teacher.head().float()
    tops: list[tuple[Tensor, ...]] = []
    for first in range(0, len(hidden), _TOKENS):
        log_p = (hidden[first : first + _TOKENS] @ head.T / identity.temperature).log_softmax(-1)
        values, order = torch.topk(log_p, identity.k)
        # 1 less the sum of the k would cancel where the teacher is sure
        tops.append((values, order, log_p.scatter(-1, order, -torch.inf).exp().sum(-1)))
    log_p, ids, tail = (torch.cat(parts)[None].cpu() for parts in zip(*tops, strict=True))
    return {"ids": ids.to(torch.int32), "log_p": log_p.to(torch.float16), "tail": tail}


class Targets:
    """Targets on disk.

    Args:
        directory: where they lie.
        identity: what they must be of.

    Raises:
        CheckpointError: missing, damaged, of another version or of something else.
    """

    def __init__(self, directory: Path, identity: TargetsIdentity) -> None:
        try:
            self.note = TargetsNote.model_validate_json((directory / _NOTE).read_bytes())
        except (OSError, ValidationError) as error:
            raise CheckpointError(f"{directory}: no targets that can be read ({error})") from error
        _check(self.note.identity, identity, directory)
        self._directory, self._shards = directory, dict[int, dict[str, Tensor]]()

    def _shard(self, number: int) -> dict[str, Tensor]:
        if number not in self._shards:
            path = self._directory / f"shard-{number:05d}.safetensors"
            data = path.read_bytes() if path.exists() else b""
            if hashlib.sha256(data).hexdigest() != self.note.shards[number]:
                raise CheckpointError(f"{path}: missing or damaged: remove {self._directory}")
            self._shards[number] = load(data)
        return self._shards[number]

    def read(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """ids int64 and log_p float32 [B, T, k], tail float32 [B, T] of the data's sequences."""
        size = self.note.identity.shard
        rows = [(self._shard(index // size), index % size) for index in indices]
        ids, log_p, tail = (
            torch.stack([shard[name][row] for shard, row in rows])
            for name in ("ids", "log_p", "tail")
        )
        return ids.long(), log_p.float(), tail


def has_targets(directory: Path) -> bool:
    """Whether targets were written there to the end."""
    return (directory / _NOTE).exists()


def _check(found: TargetsIdentity, wanted: TargetsIdentity, directory: Path) -> None:
    for field in TargetsIdentity.model_fields:
        if getattr(found, field) != getattr(wanted, field):
            raise CheckpointError(
                f"{directory}: targets of another {field} ({getattr(found, field)!r}, now "
                f"{getattr(wanted, field)!r}): choose another directory, or remove it"
            )
