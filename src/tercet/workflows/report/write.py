"""The page itself: one HTML file that opens without a network."""

import re
from collections.abc import Sequence
from math import prod, sqrt
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import TercetError, UnsupportedError
from tercet.harness.report.page import check_page, page, section, write_page
from tercet.harness.report.table import Cell, Column, number_cell, table
from tercet.runtime import load
from tercet.workflows.report.byte_shares import find_bytes
from tercet.workflows.report.plots import Point, plot_front, plot_layers
from tercet.workflows.report.runs import SPEED, Measure, Model, Value, read_runs

_MEGABYTES = "MB of weight files"


class ModelReport(BaseModel):
    """What a report holds.

    Attributes:
        path: of the page.
        models: their names.
        measures: what they are compared by.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    models: tuple[str, ...]
    measures: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}: {len(self.models)} models, {len(self.measures)} measures"


def write_model_report(
    runs: Sequence[str | Path],
    path: str | Path,
    *,
    prompts: Sequence[str] = (),
    tokens: int = 64,
    device: torch.device | str | None = None,
) -> ModelReport:
    """Write one page about compressed models: sizes, losses, speeds, layers, bytes, texts.

    Args:
        runs: packed checkpoints; files of records, as `tercet eval --record` writes them; folders
            of answered tasks, as `tercet eval --tasks --out` does.
        path: the HTML file to write; it is replaced.
        prompts: what every packed checkpoint is to continue, greedily.
        tokens: of each text, at most.
        device: where they are run; None for the GPU where there is one.

    Raises:
        CheckpointError: a run is none, or is damaged; the page is a directory, or in none.
        UnsupportedError: prompts, and no checkpoint to continue them, or one that cannot.
    """
    check_page(Path(path))
    models = read_runs(runs)
    if prompts and not any(model.checkpoint for model in models):
        raise UnsupportedError(
            "prompts are continued by packed checkpoints: give some, not records alone"
        )
    measures = list(dict.fromkeys(measure for model in models for measure in model.values))
    sections = [section("Models", _summary(models, measures), _ABOUT_INTERVALS)]
    sections += _fronts(models, measures)
    sections += _layers(models)
    if prompts:
        sections.append(section("What they write", _texts(models, prompts, tokens, device)))
    introduction = f"{len(models)} models, {len(measures)} measures."
    write_page(Path(path), page("Tercet models", introduction, sections))
    return ModelReport(
        path=str(path),
        models=tuple(model.name for model in models),
        measures=tuple(measure.title for measure in measures),
    )


_ABOUT_INTERVALS = (
    "In brackets 95 % intervals: of perplexity and its like over windows of the text, of tasks "
    "over questions. Models see the same windows: their differences are surer than the intervals."
)


def _summary(models: Sequence[Model], measures: Sequence[Measure]) -> str:
    columns = [
        Column(title="model"),
        Column(title="MB", number=True),
        Column(title="bits a weight", number=True),
        *(Column(title=measure.title, number=True) for measure in measures),
        Column(title=SPEED, number=True),
    ]
    rows = [
        [
            Cell(text=model.name),
            number_cell(model.size_bytes, "{:,.1f}", 1e6),
            number_cell(model.bits_per_weight, "{:.2f}"),
            *(_cell(measure, model.values.get(measure)) for measure in measures),
            number_cell(model.tokens_per_s, "{:,.0f}"),
        ]
        for model in models
    ]
    return table(columns, rows)


def _cell(measure: Measure, value: Value | None) -> Cell:
    if value is None:
        return Cell()
    text = measure.show(value.value)
    if value.low is not None and value.high is not None:
        text += f" ({measure.show(value.low)} to {measure.show(value.high)})"
    return Cell(text=text, value=value.value)


def _fronts(models: Sequence[Model], measures: Sequence[Measure]) -> list[str]:
    """Each measure over size and over speed, where two models have both."""
    sections: list[str] = []
    for measure in measures:
        known = [
            (at, one, one.values[measure]) for at, one in enumerate(models) if measure in one.values
        ]
        whole = [(one.name, value.value) for _, one, value in known if one.size_bytes is None]
        reference = whole[0] if len(whole) == 1 else None
        sizes = [
            Point(name=one.name, colour=at, cost=one.size_bytes / 1e6, quality=value)
            for at, one, value in known
            if one.size_bytes is not None
        ]
        speeds = [
            Point(name=one.name, colour=at, cost=one.tokens_per_s, quality=value)
            for at, one, value in known
            if one.tokens_per_s is not None and one.size_bytes is not None
        ]
        for points, axis, cheap_is_low in ((sizes, _MEGABYTES, True), (speeds, SPEED, False)):
            if len(points) < 2:
                continue
            plot = plot_front(
                points, measure, axis=axis, cheap_is_low=cheap_is_low, reference=reference
            )
            note = "The line joins the models that no other is as good and as cheap as."
            if reference is not None:
                note += f" Straight across: {reference[0]}, {measure.show(reference[1])}."
            sections.append(section(f"{measure.title}, over {axis}", plot, note))
    return sections


def _layers(models: Sequence[Model]) -> list[str]:
    """Errors of layers and where the bytes are, of the models whose checkpoint is there."""
    errors: list[tuple[str, int, dict[int, float]]] = []
    modules: list[list[Cell]] = []
    shares: list[list[Cell]] = []
    for colour, model in enumerate(models):
        if model.checkpoint is None:
            continue
        if found := _errors_of_layers(model.checkpoint):
            errors.append((model.name, colour, found))
        modules += _modules(model.name, model.checkpoint)
        shares += _shares(model.name, model.checkpoint)
    sections: list[str] = []
    if errors:
        note = (
            "|W - Q| / |W| of the weights, root mean square over a layer's modules, each weighed "
            "by its size. It says where weights moved, not what that did to the text."
        )
        sections.append(
            section("Relative error of each layer's weights", plot_layers(errors), note)
        )
    if shares:
        sections.append(section("Where the bytes are", table(_SHARES, shares)))
        sections.append(section("Modules", table(_MODULES, modules)))
    return sections


def _errors_of_layers(checkpoint: PackedCheckpoint) -> dict[int, float]:
    """By the layer's number."""
    made = checkpoint.manifest.modules if checkpoint.manifest else {}
    sums: dict[int, tuple[float, int]] = {}
    for name, entry in checkpoint.modules.items():
        layer = re.search(r"\.(\d+)\.", name)
        if layer is not None and name in made:
            size, (total, count) = prod(entry.shape), sums.get(int(layer[1]), (0.0, 0))
            error = made[name].relative_error
            sums[int(layer[1])] = total + size * error * error, count + size
    return {layer: sqrt(total / count) for layer, (total, count) in sorted(sums.items())}


_MODULES = (
    Column(title="model", choice=True),
    Column(title="module"),
    Column(title="format", choice=True),
    Column(title="rows", number=True, narrow=False),
    Column(title="columns", number=True, narrow=False),
    Column(title="bits a weight", number=True),
    Column(title="relative error", number=True),
    Column(title="algorithm", narrow=False, choice=True),
)


def _modules(name: str, checkpoint: PackedCheckpoint) -> list[list[Cell]]:
    made = checkpoint.manifest.modules if checkpoint.manifest else {}
    return [
        [
            Cell(text=name),
            Cell(text=module),
            Cell(text=entry.format),
            number_cell(entry.shape[0], "{:,.0f}"),
            number_cell(entry.shape[1], "{:,.0f}"),
            number_cell(entry.scheme.bits_per_weight(entry.shape), "{:.2f}"),
            number_cell(made[module].relative_error if module in made else None, "{:.4f}"),
            Cell(text=made[module].algorithm if module in made else ""),
        ]
        for module, entry in checkpoint.modules.items()
    ]


_SHARES = (
    Column(title="model", choice=True),
    Column(title="part", choice=True),
    Column(title="MB", number=True),
    Column(title="of all", number=True),
    Column(title="codes, MB", number=True),
    Column(title="scales and zero points, MB", number=True),
    Column(title="uncompressed, MB", number=True),
)


def _shares(name: str, checkpoint: PackedCheckpoint) -> list[list[Cell]]:
    parts = find_bytes(checkpoint)
    whole = sum(one.total for one in parts.values())
    return [
        [
            Cell(text=name),
            Cell(text=part),
            number_cell(one.total, "{:,.2f}", 1e6),
            Cell(text=f"{one.total / whole:.1%}", value=one.total / whole, bar=one.total / whole),
            *(
                number_cell(each, "{:,.2f}", 1e6)
                for each in (one.codes, one.scales, one.uncompressed)
            ),
        ]
        for part, one in sorted(parts.items(), key=lambda each: -each[1].total)
    ]


def _texts(
    models: Sequence[Model],
    prompts: Sequence[str],
    tokens: int,
    device: torch.device | str | None,
) -> str:
    """A table of what each checkpoint writes behind each prompt."""
    columns = [Column(title="prompt"), Column(title="model", choice=True), Column(title="text")]
    rows: list[list[Cell]] = []
    for model in models:
        if model.checkpoint is None:
            continue
        for prompt, text in zip(prompts, _continue(model, prompts, tokens, device), strict=True):
            rows.append([Cell(text=prompt), Cell(text=model.name), Cell(text=text, style="reason")])
    rows.sort(key=lambda row: prompts.index(row[0].text))
    return table(columns, rows)


def _continue(
    model: Model, prompts: Sequence[str], tokens: int, device: torch.device | str | None
) -> list[str]:
    """What a checkpoint writes behind each prompt; an error names the one that cannot."""
    assert model.checkpoint is not None
    try:
        generator = load(model.checkpoint.directory, device=device)
        return [generator.generate(prompt, max_new_tokens=tokens).text for prompt in prompts]
    except TercetError as error:
        raise type(error)(
            f"{model.name} continues no prompt: {error}: leave this model out, or every --prompt"
        ) from error
