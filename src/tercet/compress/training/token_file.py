"""TokenFile: the tokens of a run, on disk, so that a resumed run reads what the first one read.

A directory of `tokens.bin`, uint32 little-endian, and `tokens.json` with version, count, SHA-256
and where the tokens came from.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from tercet.checkpoints.atomic import disk_errors, write_atomic
from tercet.errors import CheckpointError, PlanError

_DATA, _NOTE = "tokens.bin", "tokens.json"


class TokenNote(BaseModel):
    """What tokens.json says.

    Attributes:
        version: of this layout.
        tokens: how many.
        sha256: of tokens.bin.
        source: where they came from, in words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    tokens: int
    sha256: str
    source: str


class TokenFile:
    """Tokens on disk, read as they are asked for.

    Args:
        directory: where tokens.bin and tokens.json lie.

    Raises:
        CheckpointError: missing, damaged or of another version.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self.note = TokenNote.model_validate_json((directory / _NOTE).read_bytes())
            size = (directory / _DATA).stat().st_size
        except (OSError, ValidationError) as error:
            raise CheckpointError(f"{directory}: no tokens that can be read ({error})") from error
        if self.note.version != 1 or size != 4 * self.note.tokens:
            raise CheckpointError(
                f"{directory}: {size} bytes, version {self.note.version}: expected "
                f"{4 * self.note.tokens} bytes of version 1; remove it, and it is made again"
            )
        self._data = np.memmap(directory / _DATA, dtype="<u4", mode="r")

    def __len__(self) -> int:
        return self.note.tokens

    def read(self, first: int, count: int) -> Tensor:
        """int64 [count], from the token `first` on."""
        chunk = np.asarray(self._data[first : first + count], dtype=np.int64)
        return torch.from_numpy(chunk)

    def verify(self) -> None:
        """CheckpointError unless the bytes are those that were written."""
        if hashlib.sha256(self._data.tobytes()).hexdigest() != self.note.sha256:
            raise CheckpointError("tokens.bin is damaged: its SHA-256 is not that of tokens.json")


def keep_tokens(directory: Path, chunks: Iterable[Tensor], source: str) -> TokenFile:
    """The tokens that were written there to the end, checked; else writes these chunks.

    Raises:
        CheckpointError: what lies there is damaged.
    """
    if not (directory / _NOTE).exists():
        return write_tokens(directory, chunks, source)
    tokens = TokenFile(directory)
    tokens.verify()
    return tokens


def write_tokens(directory: Path, chunks: Iterable[Tensor], source: str) -> TokenFile:
    """Writes chunks of token ids, one after the other; the note last, which makes them count.

    Raises:
        PlanError: there is not one token.
    """
    directory.mkdir(parents=True, exist_ok=True)
    digest, count = hashlib.sha256(), 0
    with disk_errors(directory, None), (directory / _DATA).open("wb") as file:
        for chunk in chunks:
            data = chunk.reshape(-1).numpy().astype("<u4").tobytes()
            file.write(data)
            digest.update(data)
            count += chunk.numel()
    if not count:
        raise PlanError(f"{source}: there is no text in it: give data to train on")
    note = TokenNote(tokens=count, sha256=digest.hexdigest(), source=source)
    write_atomic(directory / _NOTE, note.model_dump_json(indent=1).encode())
    return TokenFile(directory)
