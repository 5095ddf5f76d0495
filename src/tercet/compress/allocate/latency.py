"""Latency: what each format of each module adds to the time of a token, as measured on a device.

    {"version": 1, "device": "NVIDIA H200", ..., "base_us": 1310.2, "added_us": {...}}    Latencies

Modules whose products run as one (queries, keys and values; gate and up) have one format: apart
they would each be a launch of their own. A token's time is that of the model in its base formats,
and what each such group adds in another format: the whole model is timed with all groups of a kind
(those of `model.layers.*.mlp.down_proj`) in one other format at a time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tercet.checkpoints.atomic import write_atomic
from tercet.compress.allocate.sensitivity_file import Module, Sensitivity
from tercet.errors import CheckpointError, PlanError
from tercet.models.architecture import Architecture

_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}
_LIMIT = re.compile(r"(?:([^:]+):)?\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s)")


@dataclass(frozen=True, kw_only=True)
class LatencyLimit:
    """How long a token may take, and where.

    Attributes:
        us: of one token of one sequence, microseconds.
        device: a word of the device's name, or "cpu"; None for the device that is here.
    """

    us: float
    device: str | None = None


class Latencies(BaseModel):
    """What was measured of a model on a device.

    Attributes:
        device: its name.
        source_sha256: of the model whose shapes these are.
        context: positions before the token that is timed.
        groups: the modules, those that run as one product together.
        base: the format of each group, by its first module, that `base_us` is the time of.
        base_us: of a token, microseconds.
        added_us: what a group of a kind adds in another format; below 0 where it is faster.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    device: str
    source_sha256: str
    context: int
    groups: tuple[tuple[str, ...], ...]
    base: dict[str, str]
    base_us: float = Field(gt=0)
    added_us: dict[str, dict[str, float]]

    def predict_us(self, formats: Mapping[str, str]) -> float:
        """Of a token, with these formats of all modules."""
        return self.base_us + sum(self.added(group, formats[group[0]]) for group in self.groups)

    def added(self, group: tuple[str, ...], form: str) -> float:
        """What a group in a format adds to a token's time, microseconds."""
        return 0.0 if form == self.base[group[0]] else self.added_us[kind_of(group[0])][form]


def group_modules(
    modules: Mapping[str, Module], architecture: Architecture
) -> tuple[tuple[str, ...], ...]:
    """The modules, those that the decoder multiplies as one together, where a format suits all."""
    found = dict[str, tuple[str, ...]]()
    for parts in (architecture.queries_keys_values, architecture.gate_up):
        for name in modules:
            if not name.endswith(f".{parts[0]}"):
                continue
            layer = name.removesuffix(parts[0])
            members = tuple(f"{layer}{part}" for part in parts)
            if all(each in modules for each in members) and formats_of(members, modules):
                found |= dict.fromkeys(members, members)
    return tuple(dict.fromkeys(found.get(name, (name,)) for name in modules))


def formats_of(group: tuple[str, ...], modules: Mapping[str, Module]) -> tuple[str, ...]:
    """Those that every module of a group may have."""
    return tuple(
        form
        for form in modules[group[0]].formats
        if all(form in modules[name].formats for name in group)
    )


def kind_of(name: str) -> str:
    """A module's name without the numbers of its layer and expert: equal ones are one kind."""
    return re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name)


def parse_latency(text: str) -> LatencyLimit:
    """The limit of h200:1.2ms, cpu:20ms or 900us; PlanError where it is none."""
    found = _LIMIT.fullmatch(text.strip().lower())
    if found is None or not float(found[2]):
        raise PlanError(
            f"--latency {text!r}: give the time of a token, with the device if it is not the one "
            f"here: 1.2ms, h200:1.2ms, cpu:20ms"
        )
    return LatencyLimit(us=float(found[2]) * _UNITS[found[3]], device=found[1])


def save_latencies(path: Path, latencies: Latencies) -> None:
    """Writes the file, whole or not at all."""
    write_atomic(path, (latencies.model_dump_json(indent=1) + "\n").encode())


def load_latencies(path: Path, sensitivity: Sensitivity) -> Latencies:
    """What was measured of the sensitivity file's model.

    Raises:
        CheckpointError: the file is no such file.
        PlanError: it is of another model, or of other modules or formats.
    """
    try:
        found = Latencies.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: holds no latencies ({error.errors()[0]['msg']}): move it away, and they are "
            f"measured again"
        ) from error
    if found.source_sha256 != sensitivity.identity.source.sha256:
        raise PlanError(
            f"{path}: was measured of another model than {sensitivity.identity.source.reference}"
        )
    modules = sensitivity.identity.modules
    covered = sorted(name for group in found.groups for name in group) == sorted(modules)
    if not covered or not all(
        form == found.base.get(group[0]) or form in found.added_us.get(kind_of(group[0]), {})
        for group in found.groups
        for form in formats_of(group, modules)
    ):
        raise PlanError(
            f"{path}: has other modules or formats than the sensitivity file: move it away, and "
            f"they are measured again"
        )
    return found
