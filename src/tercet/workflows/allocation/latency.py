"""Allocation by latency: formats are timed in the decoder itself, with drawn weights.

Time does not depend on the weights' values, so no weight is read and nothing is quantized: the
model's config, its shapes and each module's format are enough.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.compress.allocate.latency import (
    Latencies,
    LatencyLimit,
    formats_of,
    group_modules,
    kind_of,
    load_latencies,
    save_latencies,
)
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.compress.allocate.solve import Allocation, solve_latency
from tercet.errors import PlanError
from tercet.formats import PackedTensor, parse_scheme
from tercet.models import Decoder
from tercet.models.architectures import find_architecture
from tercet.models.device import resolve_device
from tercet.packed_weight.drawn import drawn_weight
from tercet.records import Environment

Formats = Mapping[str, str]
Progress = Callable[[int, int, str], None]

CONTEXT = 1024
_BLOCK, _BLOCKS = 16, 9
# of choices that are timed until one is within the limit and no faster than it has to be
_ROUNDS, _NEAR = 6, 0.01


@dataclass(frozen=True, kw_only=True)
class Timed:
    """An allocation by latency.

    Attributes:
        allocation: the formats.
        device: whose time it is.
        context: positions before the token that is timed.
        predicted_us: of a token, the sum of what its formats add.
        measured_us: of a token with these very formats; None where the device is not here.
    """

    allocation: Allocation
    device: str
    context: int
    predicted_us: float
    measured_us: float | None


class DrawnModel:
    """A model of which the shapes are known: a source of drawn weights for a decoder.

    Args:
        config: of the model.
        sensitivity: its modules, and what stays as it is.
        formats: of the modules.
        device: that they are drawn on.
    """

    def __init__(
        self,
        config: dict[str, Any],
        sensitivity: Sensitivity,
        formats: Formats,
        device: torch.device,
    ) -> None:
        self.config, self._device = config, str(device)
        self._kept = {
            name: (getattr(torch, dtype), tuple(shape))
            for unit in sensitivity.identity.kept
            for name, (dtype, shape) in unit.items()
        }
        self.modules = {
            name: PackedModule(
                format=parse_scheme(form).name,
                shape=sensitivity.identity.modules[name].shape,
                input_scale=sensitivity.lines[name, form].input_scale,
            )
            for name, form in formats.items()
        }

    def names(self) -> Iterable[str]:
        """As WeightSource.names."""
        return self._kept

    def tensor(self, name: str) -> Tensor:
        """As WeightSource.tensor."""
        dtype, shape = self._kept[name]
        return torch.full(shape, 0.02, dtype=dtype, device=self._device)

    def read_packed(self, module: str) -> PackedTensor:
        """As WeightSource.read_packed."""
        entry = self.modules[module]
        return drawn_weight(entry.format, *entry.shape, seed=len(module), device=self._device)

    def input_scale(self, module: str) -> Tensor:
        """As WeightSource.input_scale."""
        return torch.ones(self.modules[module].shape[1], device=self._device)


def allocate_latency(
    sensitivity: Sensitivity,
    limit: LatencyLimit,
    kept: Path,
    config: Callable[[], dict[str, Any]],
    *,
    progress: Progress = lambda _, __, ___: None,
    step_us: Callable[[Decoder, int], float] | None = None,
) -> Timed:
    """The choice of least predicted KL divergence whose tokens are fast enough.

    Args:
        sensitivity: what the formats cost in quality.
        limit: of a token's time.
        kept: where latencies are kept: what is there is not measured again.
        config: reads the model's config.json, where something is to be timed.
        progress: is told (models timed, models to time, what is timed).
        step_us: times a token behind so many positions; None for `measure_step_us`.

    Raises:
        PlanError: no choice is fast enough; or the device is not here and was not measured.
        UnsupportedError: the decoder does not run the model.
    """
    known = load_latencies(kept, sensitivity) if kept.exists() else None
    here = _device_here(limit.device)
    if here is None or (known is not None and known.device != _name_of(here)):
        if known is None:
            raise PlanError(
                f"there is no {limit.device} here, and {kept} does not exist: run the same "
                f"command where there is one, and bring that file"
            )
        if limit.device is not None and limit.device not in known.device.lower():
            raise PlanError(f"{kept}: was measured on {known.device}, not on {limit.device}")
        found = solve_latency(sensitivity, known, limit.us)
        return _timed(found, known, None)
    timer = _Timer(config(), sensitivity, here, step_us or measure_step_us)
    if known is None:
        known = _measure(timer, progress)
        save_latencies(kept, known)
    return _within(timer, known, limit.us, progress)


class _Timer:
    """Times the model in any formats."""

    def __init__(
        self,
        config: dict[str, Any],
        sensitivity: Sensitivity,
        device: torch.device,
        step_us: Callable[[Decoder, int], float],
    ) -> None:
        self.sensitivity, self.device = sensitivity, device
        self.config, self._step_us = config, step_us
        self._dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        most = config.get("max_position_embeddings") or 2 * CONTEXT
        self.context = min(CONTEXT, most // 2)

    def us(self, formats: Formats) -> float:
        """A token's time with these formats, microseconds."""
        drawn = DrawnModel(self.config, self.sensitivity, formats, self.device)
        decoder = Decoder.from_checkpoint(drawn, self._dtype, self.device)
        return self._step_us(decoder, self.context)


def _measure(timer: _Timer, progress: Progress) -> Latencies:
    modules = timer.sensitivity.identity.modules
    groups = group_modules(modules, find_architecture(timer.config))
    forms = {group: formats_of(group, modules) for group in groups}
    base = {group: its[0] for group, its in forms.items()}
    kinds = dict[tuple[str, str], list[tuple[str, ...]]]()
    for group, its in forms.items():
        for form in its:
            if form != base[group]:
                kinds.setdefault((kind_of(group[0]), form), []).append(group)

    def us(selected: Mapping[tuple[str, ...], str]) -> float:
        return timer.us({name: form for group, form in selected.items() for name in group})

    progress(0, len(kinds) + 1, "base formats")
    base_us = us(base)
    added: dict[str, dict[str, float]] = {}
    for at, ((kind, form), some) in enumerate(kinds.items(), start=1):
        progress(at, len(kinds) + 1, f"{kind} in {form}")
        more = us({**base, **dict.fromkeys(some, form)}) - base_us
        added.setdefault(kind, {})[form] = more / len(some)
    return Latencies(
        device=_name_of(timer.device),
        source_sha256=timer.sensitivity.identity.source.sha256,
        context=timer.context,
        groups=groups,
        base={group[0]: form for group, form in base.items()},
        base_us=base_us,
        added_us=added,
    )


def _within(timer: _Timer, known: Latencies, limit_us: float, progress: Progress) -> Timed:
    """The best choice found whose own time is within the limit: predictions are corrected by it."""
    best: Timed | None = None
    off = 0.0
    tried: dict[tuple[str, ...], float] = {}
    for at in range(_ROUNDS):
        try:
            found = solve_latency(timer.sensitivity, known, limit_us - off)
        except PlanError:
            break
        key = tuple(found.formats.values())
        if key in tried:
            break
        progress(at, _ROUNDS, "the choice")
        us = tried[key] = timer.us(found.formats)
        if us <= limit_us and (best is None or found.sum_nats < best.allocation.sum_nats):
            best = _timed(found, known, us)
        if limit_us * (1 - _NEAR) <= us <= limit_us:
            break
        off = us - known.predict_us(found.formats)
    if best is None:
        if not tried:
            solve_latency(timer.sensitivity, known, limit_us)  # says what is possible
        raise PlanError(
            f"a token cannot take {limit_us / 1e3:.4g} ms on {known.device}: the choices that "
            f"were timed take {min(tried.values()) / 1e3:.4g} ms and more: raise the limit, or "
            f"measure smaller formats"
        )
    return best


def _timed(found: Allocation, known: Latencies, us: float | None) -> Timed:
    return Timed(
        allocation=found,
        device=known.device,
        context=known.context,
        predicted_us=known.predict_us(found.formats),
        measured_us=us,
    )


def kept_path(sensitivity: Path, limit: LatencyLimit) -> Path:
    """Where the latencies of a device are kept: beside the sensitivity file, by its name."""
    here, stem = _device_here(limit.device), sensitivity.name.split(".")[0]
    word = limit.device
    if here is not None:
        name = "cpu" if here.type == "cpu" else _name_of(here)
        word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    elif found := sorted(sensitivity.parent.glob(f"{stem}.latency-*{word}*.json")):
        return found[0]
    return sensitivity.parent / f"{stem}.latency-{word}.json"


def _device_here(wanted: str | None) -> torch.device | None:
    """The device of that name; None where it is not here."""
    if wanted == "cpu":
        return torch.device("cpu")
    device = resolve_device(None)
    if wanted is None or (device.type == "cuda" and wanted in _name_of(device).lower()):
        return device
    return None


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu: {Environment.here(None).processor}"


@torch.inference_mode()
def measure_step_us(decoder: Decoder, context: int) -> float:
    """A token of one sequence behind so many positions, as `tercet run` makes it: microseconds.

    The lower quartile of nine blocks of 16 tokens: what else runs makes a block longer, never
    shorter. A block before them warms up.
    """
    cache = decoder.cache(1)
    cache.reserve(context + _BLOCK * (_BLOCKS + 2))
    cache.extend(context)
    cache.held.zero_()
    ids, times = [0], list[float]()
    for _ in range(_BLOCKS + 1):
        begin = time.perf_counter()
        if decoder.captured:
            *_, ids = decoder.follow(ids, cache, _BLOCK)
        else:
            for _ in range(_BLOCK):
                scores = decoder.extend(torch.tensor([ids]), cache)
                ids = [int(scores.argmax())]
        times.append((time.perf_counter() - begin) / _BLOCK * 1e6)
    return sorted(times[1:])[_BLOCKS // 4]
