"""The sensitivity file: what was measured of each module in each format, a line a pair.

    {"version": 1, "source": ..., "plan": ..., "formats": ..., ...}       Identity
    {"context_kl_nats": 0.0}                                              Context
    {"module": "model.layers.0.mlp.up_proj", "format": "int3-g64", ...}   Measured
    ...
    {"sum_nats": 0.41, "observed_kl_nats": 0.52}                          Observed

Lines are only ever appended, each flushed to the disk; one that a kill has torn is dropped.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tercet.checkpoints.differences import differences
from tercet.checkpoints.packed.layout import CalibrationInfo, SourceInfo
from tercet.errors import CheckpointError, PlanError

_SHOWN = 3  # of the settings in which two measurements differ


class Module(BaseModel):
    """A module that gets a format.

    Attributes:
        unit: the checkpoint's file that it lies in, from 0.
        shape: of its weight.
        formats: those that it may get; one where it is not allocated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: int
    shape: tuple[int, int]
    formats: tuple[str, ...] = Field(min_length=1)


class Identity(BaseModel):
    """What was measured, on what and how; a file is only ever added to where all is the same.

    Attributes:
        source: the model.
        plan: algorithms, options, calibration, and the formats of modules that are not allocated.
        in_context: the other modules were as the plan has them; else uncompressed.
        divergences: how many pairs KL divergence is measured of; None for all.
        calibration, windows, held_out: hashes of the token ids.
        layers_name: of the list of layers, as in "model.layers".
        kept: of each unit, dtype and shape of the tensors that stay as they are, by name.
        modules: those that are packed, by name.
        versions, device: what the numbers depend on, too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    source: SourceInfo
    plan: dict[str, object]
    in_context: bool
    divergences: int | None
    calibration: CalibrationInfo
    windows: CalibrationInfo
    held_out: CalibrationInfo
    versions: dict[str, str]
    device: str
    layers_name: str
    kept: tuple[dict[str, tuple[str, tuple[int, ...]]], ...]
    modules: dict[str, Module]


class Context(BaseModel):
    """KL divergence before any module is changed: 0 where all are uncompressed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context_kl_nats: float


class Measured(BaseModel):
    """One module in one format.

    Attributes:
        module, format: which.
        kl_nats: KL divergence of the whole model with this one change; None where not measured.
        proxy_nats: the second-order proxy of what the change adds; None where there is none.
        input_scale: the checkpoint holds a vector that scales the module's input.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: str
    format: str
    kl_nats: float | None
    proxy_nats: float | None
    input_scale: bool = False


class Observed(BaseModel):
    """A whole plan that was carried out and measured.

    Attributes:
        sum_nats: what its modules' measurements add up to.
        observed_kl_nats: KL divergence of the compressed model on the same windows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sum_nats: float
    observed_kl_nats: float


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The content of a sensitivity file."""

    identity: Identity
    context_kl_nats: float | None
    lines: Mapping[tuple[str, str], Measured]
    observed: tuple[Observed, ...] = ()

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Pairs that are not measured yet, in the order in which they will be."""
        return [pair for pair in pairs(self.identity) if pair not in self.lines]


def pairs(identity: Identity) -> list[tuple[str, str]]:
    """Every module in each of its formats, in order."""
    return [(name, form) for name, one in identity.modules.items() for form in one.formats]


@dataclass
class _Content:
    """As far as it was read; `end` is where the first torn or missing line begins."""

    end: int = 0
    identity: Identity | None = None
    context: Context | None = None
    lines: dict[tuple[str, str], Measured] = field(default_factory=dict[tuple[str, str], Measured])
    observed: list[Observed] = field(default_factory=list[Observed])


def load(path: Path) -> Sensitivity:
    """Reads a sensitivity file, whole or not.

    Raises:
        PlanError: there is no such file, or no measurement in it.
        CheckpointError: a line that is none of its kinds.
    """
    if not path.is_file():
        raise PlanError(f"{path}: no such file: make one with `tercet sensitivity`")
    found = _read(path)
    if found.identity is None or not found.lines:
        raise PlanError(f"{path}: holds no measurement: make it with `tercet sensitivity`")
    return Sensitivity(
        identity=found.identity,
        context_kl_nats=None if found.context is None else found.context.context_kl_nats,
        lines=found.lines,
        observed=tuple(found.observed),
    )


def add_observed(path: Path, observed: Observed) -> None:
    """Appends what a plan gave, once: equal lines say nothing more."""
    if observed not in _read(path).observed:
        _append(path, observed)


class SensitivityWriter:
    """Appends to a sensitivity file.

    Args:
        path: the file.
        identity: what is measured.
        overwrite: begin anew if the file exists.
        resume: go on with a file of the same identity; a torn last line is cut off.

    Raises:
        CheckpointError: the file exists, and there is no leave to change it; or it is of something
            else.
    """

    def __init__(
        self, path: Path, identity: Identity, *, overwrite: bool = False, resume: bool = False
    ) -> None:
        check_new(path, overwrite=overwrite, resume=resume)
        self.path, self.identity = path, identity
        found = _read(path) if resume and path.exists() else _Content()
        if found.identity is not None and found.identity != identity:
            _refuse_other(path, found.identity, identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if found.end else "wb") as file:
            file.truncate(found.end)
        if found.identity is None:
            self._append(identity)
        self.context, self.lines, self.observed = found.context, found.lines, found.observed

    def add_context(self, kl_nats: float) -> None:
        """Appends the context's divergence, unless it stands there."""
        if self.context is None:
            self.context = Context(context_kl_nats=kl_nats)
            self._append(self.context)

    def add(self, line: Measured) -> None:
        """Appends a measurement."""
        self._append(line)
        self.lines[line.module, line.format] = line

    def content(self) -> Sensitivity:
        """All that the file holds now."""
        return Sensitivity(
            identity=self.identity,
            context_kl_nats=None if self.context is None else self.context.context_kl_nats,
            lines=self.lines,
            observed=tuple(self.observed),
        )

    def _append(self, line: BaseModel) -> None:
        _append(self.path, line)


def _append(path: Path, line: BaseModel) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def check_new(path: Path, *, overwrite: bool, resume: bool) -> None:
    """CheckpointError where a file would be lost or something other than a file is in the way."""
    if path.is_dir():
        raise CheckpointError(f"{path}: is a directory: choose another --out")
    if path.exists() and not overwrite and not resume:
        raise CheckpointError(
            f"{path}: already exists; go on with --resume, replace it with --overwrite, or choose "
            f"another --out"
        )
    if path.is_file() and overwrite and not _is_of_sensitivity(path):
        raise CheckpointError(
            f"{path}: is no sensitivity file, and --overwrite replaces nothing else: choose "
            f"another --out, or remove it yourself"
        )


def _is_of_sensitivity(path: Path) -> bool:
    """Whether a file is empty or begins as this version or an older one writes it."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        found: Any = json.loads(line) if line else {"version": 1, "source": None}
    except ValueError:
        return False
    return isinstance(found, dict) and {"version", "source"} <= set(cast("dict[str, Any]", found))


def _refuse_other(path: Path, found: Identity, wanted: Identity) -> None:
    old, new = found.model_dump(mode="json"), wanted.model_dump(mode="json")
    changed = [line for name in new for line in differences(name, old[name], new[name])]
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    raise CheckpointError(
        f"{path}: was measured otherwise ({'; '.join(changed[:_SHOWN])}{more}): resume with the "
        "same command, or start anew with --overwrite"
    )


def _read(path: Path) -> _Content:
    content = _Content()
    data = path.read_bytes()
    kept = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(kept.splitlines(keepends=True), start=1):
        content.end += len(line)
        if not line.strip():
            # an editor's, or one of two files that were put together
            continue
        if content.identity is None:
            content.identity = _parse(Identity, line, path, number)
        elif content.context is None:
            content.context = _parse(Context, line, path, number)
        elif b'"observed_kl_nats"' in line:
            content.observed.append(_parse(Observed, line, path, number))
        else:
            found = _parse(Measured, line, path, number)
            content.lines[found.module, found.format] = found
    return content


_Line = TypeVar("_Line", bound=BaseModel)


def _parse(kind: type[_Line], line: bytes, path: Path, number: int) -> _Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"{path}:{number}: no line of a sensitivity file ({where or 'JSON'}: {first['msg']}): "
            f"measure again with `tercet sensitivity --overwrite`"
        ) from error
