"""train and distill: a source model, a plan and data, and out comes a packed checkpoint."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from tercet.checkpoints.atomic import disk_errors
from tercet.checkpoints.layout import SourceInfo
from tercet.checkpoints.packed_writer import (
    PackedWriter,
    RunIdentity,
    check_free,
    library_versions,
    partial_directory,
)
from tercet.checkpoints.source import ModelSource, open_source
from tercet.compress.distill.objective import Distillation
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.plan import Plan
from tercet.compress.qat.plan import training_plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh, swap
from tercet.compress.qat.write import units_of, write_student
from tercet.compress.skeleton import Skeleton
from tercet.compress.soundness import check_source
from tercet.compress.training.corpus import Corpus
from tercet.compress.training.cross_entropy import cross_entropy
from tercet.compress.training.flops import forward_flops, peak_flops
from tercet.compress.training.journal import Line
from tercet.compress.training.loop import Loop, Objective, Places, Speed
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.settings import TrainingSettings
from tercet.compress.training.token_file import TokenFile, has_tokens, write_tokens


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The outcome of a run.

    Attributes:
        directory: the packed checkpoint; its training.jsonl is the journal.
        last: the journal's last line.
    """

    directory: Path
    last: Line | None


def distill(
    teacher: str | Path,
    plan: str | Plan,
    out: str | Path,
    *,
    data: Sequence[str | Path],
    settings: TrainingSettings | None = None,
    losses: DistillSettings | None = None,
    **options: Any,
) -> Trained:
    """Trains a quantized copy of a model to do as the model does, into a packed checkpoint.

    Args:
        teacher: a directory, a hub name, a GGUF file or a fetched name; the student begins as it.
        plan: a shipped plan ("ternary"), a format ("nonary-g64"), a plan file or a Plan.
        out: the directory to make.
        data: text files, .jsonl, safetensors with input_ids, or hf:NAME.
        settings, losses: how, and what is to be taken over.
        options: `device`, `overwrite`, `resume`, `tensorboard`, `progress`, as of `train`.

    Raises:
        TercetError: bad input; a run that is killed leaves `OUT.partial`, from which `resume` goes
            on with the losses that it would have had.
    """
    return _train(
        teacher, plan, out, data, settings or TrainingSettings(), losses or DistillSettings(),
        **options,
    )  # fmt: skip


def train(
    model: str | Path,
    plan: str | Plan,
    out: str | Path,
    *,
    data: Sequence[str | Path],
    settings: TrainingSettings | None = None,
    **options: Any,
) -> Trained:
    """The same by cross entropy of the next token, without a teacher.

    Args:
        model, plan, out, data, settings: as of `distill`.
        options: `device` ("cpu", "cuda"; None for a GPU where there is one), `overwrite` what lies
            at `out`, `resume` an unfinished run, `tensorboard` events, `progress` told (journal
            line, steps in all).
    """
    return _train(model, plan, out, data, settings or TrainingSettings(), None, **options)


def _train(
    model: str | Path,
    plan: str | Plan,
    out: str | Path,
    data: Sequence[str | Path],
    settings: TrainingSettings,
    losses: DistillSettings | None,
    *,
    device: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    tensorboard: bool = False,
    progress: Callable[[Line, int], None] = lambda _, __: None,
) -> Trained:
    plan = training_plan(plan)
    check_free(Path(out), overwrite=overwrite, resume=resume)
    source = open_source(model)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    references = [str(reference) for reference in data]
    tokenizer = partial_directory(Path(out)) / "tokenizer.json"
    corpus = Corpus(references, tokenizer, _end_token(source))
    skeleton = Skeleton(source)
    check_source(skeleton)
    identity = _identity(source, plan, references, settings, losses, units_of(skeleton))
    writer = PackedWriter(Path(out), identity, overwrite=overwrite, resume=resume)
    with disk_errors(writer.partial, None):
        source.save_tokenizer(writer.partial)
    tokens = _tokens(writer, corpus, references, settings)
    student, speed = _student(skeleton, plan, settings, place)
    objective: Objective = cross_entropy
    if losses is not None:
        teacher = _teacher(source, settings, place)
        objective = Distillation(teacher, losses)
        speed = Speed(flops=speed.flops * 4 / 3, peak=speed.peak)
    last: list[Line] = []

    def told(line: Line, steps: int) -> None:
        last[:] = [line]
        progress(line, steps)

    loop = Loop(
        student,
        objective,
        Sequences(tokens, settings.length, settings.seed),
        settings,
        Places(state=writer.state, journal=writer.partial, tensorboard=tensorboard),
        speed,
    )
    loop.run(told)
    student.model.eval()
    refresh(student.quantized)
    write_student(skeleton, student, plan, writer)
    return Trained(directory=Path(out), last=last[0] if last else None)


def _identity(
    source: ModelSource,
    plan: Plan,
    data: list[str],
    settings: TrainingSettings,
    losses: DistillSettings | None,
    units: int,
) -> RunIdentity:
    how = {
        "data": data,
        "settings": settings.model_dump(mode="json", exclude={"save_every", "log_every"}),
        "losses": losses.model_dump(mode="json") if losses is not None else None,
    }
    return RunIdentity(
        source=SourceInfo(
            reference=source.reference,
            sha256=source.sha256(),
            size_bytes=source.size_bytes,
            parameters=source.parameter_count,
        ),
        calibration=None,
        plan={**plan.model_dump(mode="json", exclude={"calibration"}), "training": how},
        versions=library_versions(),
        units=units,
    )


def _end_token(source: ModelSource) -> int | None:
    end: Any = source.config.get("eos_token_id")
    return cast("list[int]", end)[0] if isinstance(end, list) else end


def _tokens(
    writer: PackedWriter, corpus: Corpus, data: list[str], settings: TrainingSettings
) -> TokenFile:
    directory = writer.state / "tokens"
    if has_tokens(directory):
        tokens = TokenFile(directory)
        tokens.verify()
        return tokens
    most = settings.steps * settings.accumulate * settings.sequences * settings.length
    return write_tokens(directory, corpus.pieces(most), ", ".join(data))


def _student(
    skeleton: Skeleton, plan: Plan, settings: TrainingSettings, device: torch.device
) -> tuple[Student, Speed]:
    model = _filled(skeleton, device, torch.float32)
    speed = Speed(
        flops=3 * forward_flops(model, settings.length),
        peak=peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None,
    )
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    quantized = swap(model, plan, settings.dtype)
    anything: Any = model
    if settings.checkpoint_activations:
        anything.gradient_checkpointing_enable({"use_reentrant": False})
    student = Student(model, quantized, settings.dtype)
    if settings.compile:
        anything.base_model.compile()
    return student, speed


def _teacher(source: ModelSource, settings: TrainingSettings, device: torch.device) -> Student:
    return Student(_filled(Skeleton(source), device, settings.dtype).eval(), {}, settings.dtype)


def _filled(skeleton: Skeleton, device: torch.device, dtype: torch.dtype) -> Any:
    names: Iterable[str] = [name for name, _ in skeleton.model.named_parameters()]
    for name in names:
        skeleton.put(name, skeleton.read(name).to(device, dtype))
    return skeleton.model.to(device)
