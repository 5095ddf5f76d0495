"""Writing a packed checkpoint unit by unit, so that a killed run loses one unit at most.

Everything is written into `OUT.partial`; a unit counts once its JSON note stands in
`OUT.partial/unfinished`. `finish` writes the index, the configuration, the manifest and the seal
and renames the directory, so OUT is either whole or not there.
"""

import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict
from safetensors import torch as safetensors_torch
from torch import Tensor

from tercet.checkpoints.atomic import disk_errors, write_atomic
from tercet.checkpoints.differences import differences
from tercet.checkpoints.named_path import partial_directory
from tercet.checkpoints.packed.layout import (
    INDEX_NAME,
    MANIFEST_NAME,
    CalibrationInfo,
    FileInfo,
    Manifest,
    ModuleInfo,
    PackedModule,
    QuantizationConfig,
    SourceInfo,
)
from tercet.checkpoints.packed.output_directory import STATE, check_free, replace_directory
from tercet.checkpoints.packed.read import read_header
from tercet.checkpoints.seal import seal
from tercet.errors import CheckpointError
from tercet.version import VERSION


class RunIdentity(BaseModel):
    """What a run is made of; a run resumes only where all of it is the same.

    A GPU rounds some weights another way than a CPU: a checkpoint is made by one of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: SourceInfo
    calibration: CalibrationInfo | None
    plan: dict[str, object]
    versions: dict[str, str]
    units: int
    device: str = "cpu"


class UnitNote(BaseModel):
    """What one written unit holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: dict[str, PackedModule]
    modules: dict[str, ModuleInfo]
    file: FileInfo


def library_versions() -> dict[str, str]:
    """Versions of what decides the bytes."""
    libraries = {name: version(name) for name in ("torch", "transformers", "safetensors")}
    return {"tercet": VERSION, **libraries}


class PackedWriter:
    """Writes one packed checkpoint into `out`.

    Args:
        out: the directory to make.
        identity: what the run is made of.
        overwrite: replace the checkpoint at `out` and any unfinished run beside it.
        resume: go on with an unfinished run of the same identity.

    Attributes:
        resumed: whether there was an unfinished run to go on with.
    """

    def __init__(
        self, out: Path, identity: RunIdentity, *, overwrite: bool = False, resume: bool = False
    ) -> None:
        self.out = out
        self.partial = partial_directory(out)
        self.state = self.partial / STATE
        self.identity = identity
        check_free(out, overwrite=overwrite, resume=resume)
        if self.partial.exists() and not resume:
            shutil.rmtree(self.partial)
        self._open_partial()

    def _open_partial(self) -> None:
        note = self.state / "run.json"
        self.resumed = note.exists()
        if self.resumed:
            found = _read_note(note)
            for field, value in json.loads(self.identity.model_dump_json()).items():
                if found.get(field) != value:
                    different = "; ".join(differences(field, found.get(field), value))
                    raise CheckpointError(
                        f"{self.partial}: the unfinished run has another {field} ({different}): "
                        f"resume with the same command, or start anew with --overwrite"
                    )
            return
        with disk_errors(self.partial, None):
            self.state.mkdir(parents=True, exist_ok=True)
        try:
            write_atomic(note, self.identity.model_dump_json(indent=1).encode())
        except CheckpointError:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the unfinished run."""
        shutil.rmtree(self.partial)

    def file_name(self, unit: int) -> str:
        """The safetensors file of a unit, counted from 0."""
        return f"model-{unit + 1:05d}-of-{self.identity.units:05d}.safetensors"

    def note(self, unit: int) -> UnitNote | None:
        """What a unit holds, or None while it is not written."""
        path = self.state / f"unit-{unit:05d}.json"
        return UnitNote.model_validate_json(path.read_bytes()) if path.exists() else None

    def write(
        self,
        unit: int,
        tensors: dict[str, Tensor],
        entries: dict[str, PackedModule],
        modules: dict[str, ModuleInfo],
    ) -> None:
        """Writes a unit: its tensors, then the note that makes it count."""
        held = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
        path = self.partial / self.file_name(unit)
        # from the tensors' own memory: as one string the unit would be held three times
        write_atomic(path, lambda temporary: safetensors_torch.save_file(held, temporary))
        note = UnitNote(entries=entries, modules=modules, file=_describe_file(path))
        write_atomic(self.state / f"unit-{unit:05d}.json", note.model_dump_json(indent=1).encode())

    def finish(self, config: dict[str, Any]) -> Manifest:
        """Adds index, configuration and manifest, and moves the directory into place.

        Of `config`, auto_map is left out: the classes are those of transformers, and the code of
        the model's own that it names is not in the directory.
        """
        notes = [self._finished_note(unit) for unit in range(self.identity.units)]
        files = {self.file_name(unit): note.file for unit, note in enumerate(notes)}
        weight_map = {
            name: file
            for file, info in files.items()
            for name in read_header(self.partial / file, info)
        }
        entries = {name: entry for note in notes for name, entry in note.entries.items()}
        total = sum(info.size_bytes for info in files.values())
        manifest = Manifest(
            source=self.identity.source,
            calibration=self.identity.calibration,
            plan=self.identity.plan,
            versions=self.identity.versions,
            modules={name: info for note in notes for name, info in note.modules.items()},
            files=files,
        )
        quantization = QuantizationConfig(modules=entries)
        whole = {name: value for name, value in config.items() if name != "auto_map"}
        whole["quantization_config"] = quantization.model_dump(exclude_none=True)
        _write_json(
            self.partial / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map}
        )
        _write_json(self.partial / MANIFEST_NAME, manifest.model_dump())
        _write_json(self.partial / "config.json", whole)
        seal(self.partial, {file: info.sha256 for file, info in files.items()})
        replace_directory(self.partial, self.out)
        shutil.rmtree(self.out / STATE)
        return manifest

    def _finished_note(self, unit: int) -> UnitNote:
        note = self.note(unit)
        assert note is not None, f"unit {unit} was never written"
        return note


def vouch(directory: Path, manifest: Manifest | None) -> None:
    """Makes manifest and seal those of the files, where somebody else has written a checkpoint.

    Args:
        directory: holds config.json and safetensors files, with their index where there are more.
        manifest: of what the files hold, with other files; None for none.
    """
    index, known = directory / INDEX_NAME, dict[str, str]()
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    if manifest is not None:
        names = {"model.safetensors"}
        if index.exists():
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        files = {name: _describe_file(directory / name) for name in sorted(names)}
        whole = manifest.model_copy(update={"files": files})
        _write_json(directory / MANIFEST_NAME, whole.model_dump())
        known = {name: info.sha256 for name, info in files.items()}
    seal(directory, known)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True).encode())


def _describe_file(path: Path) -> FileInfo:
    """Size and digests of a safetensors file, read in pieces."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header_sha256 = hashlib.sha256(file.read(length)).hexdigest()
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = path.stat().st_size
    return FileInfo(size_bytes=size, header_sha256=header_sha256, sha256=sha256)


def _read_note(path: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise TypeError("no JSON object")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}): start anew with --overwrite"
        ) from error
    return cast("dict[str, Any]", found)
