"""What is known of each model: its checkpoint, and what records say of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tercet.checkpoints.packed.read import PackedCheckpoint, is_packed, open_packed
from tercet.checkpoints.seal import weights_sha256
from tercet.checkpoints.sources.fetch import find_packed
from tercet.errors import CheckpointError
from tercet.evaluate.size import measure_size
from tercet.evaluate.tasks.samples import RECORDS_NAME, SETTINGS_NAME
from tercet.records import Record, load

SPEED = "tokens/s"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is measured, of which text or questions: values of one measure can be compared.

    Attributes:
        name: "perplexity", or a task's metric.
        of: the text or task, and how much of it.
        lower_is_better: otherwise higher is.
        share: whether it is one, shown in percent.
    """

    name: str
    of: str
    lower_is_better: bool
    share: bool

    @property
    def title(self) -> str:
        """Name and text."""
        return f"{self.name}, {self.of}"

    def show(self, value: float) -> str:
        """A value in words."""
        if self.share:
            return f"{value:.1%}"
        return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


@dataclass(frozen=True, kw_only=True)
class Value:
    """A measured value and its 95 % interval, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(kw_only=True)
class Model:
    """A model of the report.

    Attributes:
        name: as the user called it.
        checkpoint: None where only records are known.
        weights_sha256: of its weight files; None where nothing says it.
        values: by measure; the last record counts.
        tokens_per_s: in generation, one sequence; None where not measured.
        size_bytes, bits_per_weight: of the weight files, everything counted; None where unknown.
    """

    name: str
    checkpoint: PackedCheckpoint | None = None
    weights_sha256: str | None = None
    values: dict[Measure, Value] = field(default_factory=dict[Measure, Value])
    tokens_per_s: float | None = None
    size_bytes: float | None = None
    bits_per_weight: float | None = None


def read_runs(paths: Iterable[str | Path]) -> list[Model]:
    """The models of packed checkpoints, of files of records and of folders of answered tasks.

    A checkpoint may also be the name of one that `fetch` brings.

    Records and checkpoints of one directory are one model, however the path is written.

    Raises:
        CheckpointError: a path is none of these, or holds nothing that a report shows.
    """
    models, records = dict[str, Model](), list[Record]()
    for path in map(find_packed, paths):
        if path.is_dir() and is_packed(path):
            _add_checkpoint(models, path)
        elif path.is_dir() and (path / SETTINGS_NAME).is_file():
            records += _read_records(path / RECORDS_NAME)
        elif path.is_file():
            records += _read_records(path)
        else:
            raise CheckpointError(
                f"{path}: {'is no run' if path.exists() else 'no such file or directory'}: give "
                f"packed checkpoints, files that `tercet eval --record FILE` wrote, or folders "
                f"that `tercet eval --tasks NAMES --out FOLDER` wrote"
            )
    _add_records(models, records)
    if not models:
        raise CheckpointError("no run: give packed checkpoints or files of `tercet eval --record`")
    return list(models.values())


_KINDS = ("evaluation", "task")


def _is_speed(record: Record) -> bool:
    """Whether it is Tercet's own of a `tercet bench`; other engines ran an export."""
    is_own = record.kind == "export-speed" and record.subject.startswith("tercet ")
    return is_own and {"checkpoint", "decode_tokens_per_s"} <= {*record.settings, *record.metrics}


def _model(models: dict[str, Model], name: str) -> Model:
    path = Path(name)
    key = str(path.resolve()) if path.exists() else name
    return models.setdefault(key, Model(name=name))


def _add_checkpoint(models: dict[str, Model], path: Path) -> None:
    checkpoint = open_packed(path)
    size = measure_size(checkpoint)
    model = _model(models, str(path))
    model.checkpoint, model.weights_sha256 = checkpoint, weights_sha256(path)
    model.size_bytes, model.bits_per_weight = size.disk_bytes, size.bits_per_weight


def _read_records(path: Path) -> list[Record]:
    records = [one for one in load(path) if one.metrics and (one.kind in _KINDS or _is_speed(one))]
    if not records:
        raise CheckpointError(
            f"{path}: holds no record of an evaluation or of a checkpoint's speed: `tercet eval "
            "--record FILE` and `tercet bench --record FILE` write them"
        )
    return records


def _add_records(models: dict[str, Model], records: Sequence[Record]) -> None:
    apart, old = _find_differing(records), list[tuple[Model, dict[Measure, Value], Record]]()
    for record in records:
        if _is_speed(record):
            model = _model(models, str(record.settings["checkpoint"]))
            model.tokens_per_s = record.metrics["decode_tokens_per_s"]
            continue
        model = _model(models, record.subject)
        found = _task(record) if record.kind == "task" else _evaluation(record, apart)
        if model.checkpoint is not None and _is_of_others(model, record):
            old.append((model, found, record))
            continue
        metrics = record.metrics
        model.tokens_per_s = metrics.get("decode_tokens_per_s", model.tokens_per_s)
        if model.checkpoint is None:
            model.size_bytes = metrics.get("disk_bytes", model.size_bytes)
            model.bits_per_weight = metrics.get("bits_per_weight", model.bits_per_weight)
        model.values.update(found)
    for model, found, record in old:
        # what was measured again since then counts
        if not found.keys() <= model.values.keys():
            raise CheckpointError(
                f"{model.name}: was compressed again since {record.time}, when it was evaluated: "
                f"evaluate it again, or leave out that record"
            )


def _is_of_others(model: Model, record: Record) -> bool:
    """Whether the record was taken of other weights than lie there now."""
    return record.settings.get("weights_sha256") not in (None, model.weights_sha256)


def _find_differing(records: Sequence[Record]) -> set[str]:
    """Of what evaluations are of, the settings that are not the same in all of them."""
    found = dict[tuple[str, str], set[Any]]()
    for record in records:
        for name in ("teacher", "text_sha256") if record.kind == "evaluation" else ():
            if (value := record.settings.get(name)) is not None:
                found.setdefault((name, _windows(record)), set()).add(value)
    return {name for (name, _), values in found.items() if len(values) > 1}


def _windows(record: Record) -> str:
    settings = record.settings
    return f"{settings['text']}, {settings['windows']} x {settings['window_tokens']} tokens"


_QUALITIES: Mapping[str, tuple[str, bool, bool]] = {
    "perplexity": ("perplexity", True, False),
    "kl_nats": ("KL from the teacher, nats", True, False),
    "top1_agreement": ("top-1 agreement with the teacher", False, True),
}


def _evaluation(record: Record, apart: set[str]) -> dict[Measure, Value]:
    settings, found = record.settings, dict[Measure, Value]()
    of = _windows(record)
    if "text_sha256" in apart and settings.get("text_sha256"):
        of += f" ({str(settings['text_sha256'])[:8]})"
    of += _cache(record)
    for key, (name, lower, share) in _QUALITIES.items():
        # the teacher's distance from itself is no result
        if key in record.metrics and (key == "perplexity" or settings["role"] == "student"):
            if "teacher" in apart:
                name = name.replace("the teacher", str(settings.get("teacher")))
            measure = Measure(name=name, of=of, lower_is_better=lower, share=share)
            found[measure] = _value(record, key)
    return found


def _cache(record: Record) -> str:
    kept = record.settings.get("kv_cache_dtype")
    return "" if kept is None else f", {kept} cache"


def _task(record: Record) -> dict[Measure, Value]:
    settings = record.settings
    asked = f"{record.metrics['questions']:.0f} questions"
    if settings.get("shots") is not None:
        asked += f", {settings['shots']} shots"
    if settings.get("chat"):
        asked += ", as chats"
    if settings.get("max_tokens") is not None:
        asked += f", answers of {settings['max_tokens']} tokens"
    asked += _cache(record)
    name = f"{settings['task']} ({settings['metric']})"
    measure = Measure(name=name, of=asked, lower_is_better=False, share=True)
    return {measure: _value(record, "score")}


def _value(record: Record, key: str) -> Value:
    metrics = record.metrics
    return Value(value=metrics[key], low=metrics.get(f"{key}_low"), high=metrics.get(f"{key}_high"))
