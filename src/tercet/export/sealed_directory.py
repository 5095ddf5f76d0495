"""An exported directory: the graph, its weights, what a tokenizer needs, and hashes of it all.

A damaged weight file loads in most engines and answers nonsense: `check_seal` refuses it.
"""

import hashlib
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.seal import seal
from tercet.checkpoints.sources.safetensors_directory import COMPANIONS
from tercet.errors import CheckpointError
from tercet.version import VERSION

SEAL_NAME = "tercet_export.json"


class Seal(BaseModel):
    """tercet_export.json: what was written, and by whom."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    version: str
    sha256: dict[str, str]


@contextmanager
def sealed_directory(checkpoint: PackedCheckpoint, out: Path, target: str) -> Generator[Path]:
    """A directory to write the graph into; it takes the name `out` when the block ends well.

    config.json (without the quantization of the checkpoint) and the tokenizer's files are added.

    Raises:
        CheckpointError: `out` exists, or the disk is full.
    """
    with atomic_directory(out) as directory:
        yield directory
        plain = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
        (directory / "config.json").write_text(json.dumps(plain, indent=2) + "\n")
        for name in COMPANIONS:
            if (checkpoint.directory / name).is_file():
                shutil.copyfile(checkpoint.directory / name, directory / name)
        hashes = {path.name: _hash(path) for path in sorted(directory.iterdir())}
        note = Seal(target=target, version=VERSION, sha256=hashes)
        (directory / SEAL_NAME).write_text(note.model_dump_json(indent=1) + "\n")
        seal(directory, hashes)


def check_seal(out: Path, target: str) -> None:
    """Reads every byte of an export of that target.

    Raises:
        CheckpointError: it is no such export, or a file is missing, cut short or altered.
    """
    path = out / SEAL_NAME
    again = f"export the checkpoint again with --to {target}"
    try:
        found = Seal.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise CheckpointError(
            f"{out}: no export that can be checked ({path.name}: {error}): {again}"
        ) from error
    if found.target != target:
        raise CheckpointError(f"{out}: an export to {found.target!r}, not to {target!r}: {again}")
    for name, expected in found.sha256.items():
        if not (out / name).is_file():
            raise CheckpointError(f"{out / name}: missing: {again}")
        if _hash(out / name) != expected:
            raise CheckpointError(
                f"{out / name}: its bytes are not those that were written: {again}"
            )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
