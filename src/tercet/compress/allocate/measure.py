"""measure: the damage that each format does to each module of a model, into a sensitivity file."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.layout import SourceInfo
from tercet.checkpoints.packed.write import library_versions
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.compress import text
from tercet.compress.allocate.candidates import Candidates
from tercet.compress.allocate.fisher import output_fisher
from tercet.compress.allocate.rows import Rows, Windows, read_rows
from tercet.compress.allocate.sensitivity_file import (
    Identity,
    Measured,
    Module,
    Sensitivity,
    SensitivityWriter,
    check_new,
    pairs,
)
from tercet.compress.allocate.tail import Reference, Tail
from tercet.compress.plan import Plan, Rule, load_plan
from tercet.compress.skeleton import Skeleton
from tercet.compress.units import Units, match_rules, plan_of
from tercet.errors import PlanError, UnsupportedError
from tercet.formats import parse_scheme
from tercet.models.device import resolve_device

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is measured.

    Attributes:
        formats: names of number formats that the layers' linears may get.
        embedding, head: offer them to the embedding, and to a head that has its own weight; else
            these have the plan's format.
        in_context: the other modules are as the plan has them; else uncompressed.
        divergences: how many pairs KL divergence is measured of, evenly spaced, beside those that
            have no proxy; None for all.
    """

    formats: tuple[str, ...]
    embedding: bool = False
    head: bool = False
    in_context: bool = False
    divergences: int | None = None

    def __post_init__(self) -> None:
        if not self.formats:
            raise PlanError("no format to measure: give --formats ternary-g64,int3-g64")
        names = [parse_scheme(name).name for name in self.formats]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"format {name} is named twice: name each format once")
        object.__setattr__(self, "formats", tuple(names))


def measure_sensitivity(
    model: str | Path | ModelSource,
    scope: Scope,
    out: str | Path,
    *,
    plan: str | Path | Plan = "int4",
    calibration: str | Path | Tensor | None = None,
    windows: Windows | None = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = lambda _, __, ___: None,
) -> Sensitivity:
    """Measure how much each format hurts each module, and write it to a sensitivity file.

    The whole model is in memory in float32.

    Args:
        model: as `compress` takes it; a language model.
        scope: which formats of which modules.
        out: the file.
        plan: algorithms, options, calibration, and the formats of modules that get no others.
        calibration: as `compress` takes it; a part of the rows measures.
        windows: how much text measures.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one.
        overwrite: replace the file.
        resume: go on with the file; what stands in it is not measured again.
        progress: is told (pairs measured, pairs in all, what is done now).

    Raises:
        CheckpointError, FormatError, PlanError: the input is not valid.
        UnsupportedError: no such device, or a model without logits.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    check_new(Path(out), overwrite=overwrite, resume=resume)
    if isinstance(calibration, (str, Path)):
        text.check_file(Path(calibration))
    where = resolve_device(device)
    with lock_output(Path(out)):
        source = model if isinstance(model, ModelSource) else open_source(model)
        skeleton = Skeleton(source, where)
        plan, rows = _read(skeleton, plan, calibration, windows)
        rules = match_rules(skeleton, plan).rules
        identity = _identity(skeleton, scope, plan, rules, rows)
        writer = SensitivityWriter(Path(out), identity, overwrite=overwrite, resume=resume)
        if writer.content().missing:
            with skeleton.materialize([name for name, _ in skeleton.model.named_children()]):
                _measure(skeleton, scope, plan, rules, rows, writer, progress)
        return writer.content()


def _read(
    skeleton: Skeleton,
    plan: Plan,
    calibration: str | Path | Tensor | None,
    windows: Windows | None,
) -> tuple[Plan, Rows]:
    """The plan for this model, and its text; see `measure_sensitivity`."""
    source = skeleton.source
    if skeleton.model.get_output_embeddings() is None:  # pyright: ignore[reportCallIssue]
        raise UnsupportedError(
            f"{source.reference} is a {type(skeleton.model).__name__}, which gives no logits: "
            f"sensitivity is measured of language models only"
        )
    plan = plan_of(skeleton.model, plan)
    with TemporaryDirectory() as folder:
        source.save_companions(folder)
        rows = read_rows(
            calibration,
            Path(folder),
            plan.calibration,
            windows if windows else Windows(),
            source.reference,
        )
    for ids, option in ((rows.calibration, "--length"), (rows.windows, "--window-length")):
        text.check_fits(ids, skeleton.model.config, source.reference, option)
    return plan, rows


def _measure(
    skeleton: Skeleton,
    scope: Scope,
    plan: Plan,
    rules: Mapping[str, Rule],
    rows: Rows,
    writer: SensitivityWriter,
    progress: Progress,
) -> None:
    every = pairs(writer.identity)
    missing = writer.content().missing
    done = len(every) - len(missing)
    progress(done, len(every), "uncompressed model")
    linears: dict[str, nn.Module] = {
        name: module for name in rules if isinstance(module := skeleton.module(name), nn.Linear)
    }
    fisher = output_fisher(skeleton, rows.windows, linears)
    reference = Reference(skeleton, rows.windows)
    candidates = Candidates(
        skeleton, plan, rules, missing, in_context=scope.in_context, fisher=fisher
    )
    candidates.make(rows.calibration, lambda name: progress(done, len(every), f"quantize {name}"))
    tail = Tail(skeleton, reference, candidates.transforms)
    context_kl = tail.context_kl() if scope.in_context else 0.0
    writer.add_context(context_kl)
    sample = choose_sample(every, scope.divergences)
    for name, form in missing:
        progress(done, len(every), name)
        found = candidates.found[name, form]
        kl = None
        if scope.in_context and form == parse_scheme(str(rules[name].format)).name:
            kl = context_kl
        elif (name, form) in sample or found.proxy_nats is None:
            kl = tail.kl(name, found.quantized)
        writer.add(
            Measured(
                module=name,
                format=form,
                kl_nats=kl,
                proxy_nats=found.proxy_nats,
                input_scale=found.quantized.input_scale is not None,
            )
        )
        done += 1
    progress(done, len(every), "")


def choose_sample(every: Sequence[tuple[str, str]], count: int | None) -> set[tuple[str, str]]:
    """So many of the pairs, or all: of each format alike, of each kind of module alike, any layer.

    Args:
        every: (module, format).
        count: None for all.
    """
    if count is None or count >= len(every):
        return set(every)
    # the same in each run: one that is resumed goes on with its sample
    generator = random.Random("sample of pairs")
    turns: list[list[tuple[str, str]]] = []
    for form in sorted({form for _, form in every}):
        kinds: dict[str, list[tuple[str, str]]] = {}
        for pair in every:
            if pair[1] == form:
                kinds.setdefault(pair[0].rsplit(".", 1)[-1], []).append(pair)
        shuffled = [generator.sample(pairs, len(pairs)) for pairs in kinds.values()]
        turns.append(_in_turn(generator.sample(shuffled, len(shuffled))))
    return set(_in_turn(turns)[:count])


def _in_turn(lists: list[list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """The first of each, the second of each, and so on."""
    return [each for turn in zip_longest(*lists) for each in turn if each is not None]


def _identity(
    skeleton: Skeleton, scope: Scope, plan: Plan, rules: Mapping[str, Rule], rows: Rows
) -> Identity:
    source, units = skeleton.source, Units.of(skeleton)
    modules: dict[str, Module] = {}
    kept: list[dict[str, tuple[str, tuple[int, ...]]]] = []
    for unit, parameters in enumerate(units.parameters):
        packed = [name for name in rules if f"{name}.weight" in set(parameters)]
        for name in packed:
            shape = skeleton.model.get_parameter(f"{name}.weight").shape
            modules[name] = Module(
                unit=unit,
                shape=(shape[0], shape[1]),
                formats=_formats(scope, skeleton, unit, name, rules[name]),
            )
        stays = [name for name in parameters if name.removesuffix(".weight") not in packed]
        stored = {name: skeleton.stored_name(name) or name for name in stays}
        kept.append(
            {
                name: (str(source.dtype(its)).removeprefix("torch."), source.shape(its))
                for name, its in stored.items()
            }
        )
    return Identity(
        source=SourceInfo(
            reference=source.reference,
            sha256=source.sha256(),
            size_bytes=source.size_bytes,
            parameters=source.parameter_count,
        ),
        plan=plan.model_dump(mode="json"),
        in_context=scope.in_context,
        divergences=scope.divergences,
        calibration=text.describe(rows.calibration),
        windows=text.describe(rows.windows),
        held_out=text.describe(rows.held_out),
        versions=library_versions(),
        device=skeleton.device.type,
        layers_name=skeleton.layers_name,
        kept=tuple(kept),
        modules=modules,
    )


def _formats(scope: Scope, skeleton: Skeleton, unit: int, name: str, rule: Rule) -> tuple[str, ...]:
    if 0 < unit <= len(skeleton.layers):
        return scope.formats
    is_embedding = isinstance(skeleton.module(name), nn.Embedding)
    offered = scope.embedding if is_embedding else scope.head
    return scope.formats if offered else (parse_scheme(str(rule.format)).name,)
