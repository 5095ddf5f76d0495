"""train and distill: quantization-aware training of a source model into a packed checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.atomic import disk_errors
from tercet.checkpoints.named_path import partial_directory
from tercet.checkpoints.packed.layout import SourceInfo
from tercet.checkpoints.packed.output_directory import STATE, claim_output, resolve_output
from tercet.checkpoints.packed.write import (
    PackedWriter,
    RunIdentity,
    library_versions,
)
from tercet.checkpoints.sources.open import open_source
from tercet.compress.distill.cached import CachedDistillation
from tercet.compress.distill.objective import Distillation
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.distill.targets import Targets, TargetsIdentity, has_targets, write_targets
from tercet.compress.plan import Plan
from tercet.compress.qat.fused_modules import fuse_modules
from tercet.compress.qat.plan import training_plan
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh, swap
from tercet.compress.qat.write import units_of, write_student
from tercet.compress.skeleton import Skeleton
from tercet.compress.soundness import check_source
from tercet.compress.training.corpus import Corpus, end_token
from tercet.compress.training.cross_entropy import CrossEntropy
from tercet.compress.training.flops import forward_flops, peak_flops
from tercet.compress.training.group import Group, open_group
from tercet.compress.training.journal import Line, check_tensorboard
from tercet.compress.training.loop import Loop, Objective, RunPaths, Speed
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.settings import TrainingSettings
from tercet.compress.training.token_file import TokenFile, keep_tokens
from tercet.compress.units import plan_of
from tercet.errors import PlanError, UnsupportedError, unknown_name
from tercet.models.position_limit import check_positions
from tercet.workflows.training.check_settings import check_settings
from tercet.workflows.training.teacher_text import write_texts


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of a training run.

    Attributes:
        directory: the packed checkpoint; its file training.jsonl is the run's journal.
        last: the journal's last line; None on every rank but 0.
    """

    directory: Path
    last: Line | None


def distill(
    teacher: str | Path,
    plan: str | Plan,
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    settings: TrainingSettings | None = None,
    losses: DistillSettings | None = None,
    targets: str | Path | None = None,
    **options: Any,
) -> Trained:
    """Distill a teacher into a quantized student and write the student as a packed checkpoint.

    The student starts from the teacher's weights. A killed run leaves the directory `OUT.partial`;
    with `resume` the run continues from there, with the same losses as an uninterrupted run.

    Args:
        teacher: a model directory, a Hugging Face hub name, a GGUF file or a fetched model's name.
        plan: a shipped plan ("ternary"), a number format ("nonary-g64"), a plan file or a Plan.
        out: the directory to write.
        data: text files, .jsonl files, .safetensors files with input_ids, "hf:NAME", or
            "teacher:TOKENS" for text that the teacher generates.
        settings: optimizer, batch and precision; None for the defaults.
        losses: the terms of the distillation loss; None for the defaults.
        targets: with losses.top_k, a directory for the teacher's cached targets, which other runs
            on the same tokens reuse; None to keep them with this run only.
        options: `device`, `overwrite`, `resume`, `tensorboard`, `progress`, as in `train`.

    Raises:
        TercetError: the input is not valid.
    """
    with open_group(options.get("device")) as group, _claim(group, out, teacher, options) as out:
        own = Path(targets) if targets is not None else None
        losses = DistillSettings() if losses is None else losses
        return _Run(group, teacher, plan, out, data, settings, losses, own, **options).all()


def train(
    model: str | Path,
    plan: str | Plan,
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    settings: TrainingSettings | None = None,
    **options: Any,
) -> Trained:
    """Train a quantized model with next-token cross entropy and write it as a packed checkpoint.

    Args:
        model: the source model, named as the teacher of `distill` is.
        plan, out, data, settings: as in `distill`.
        options: `device` ("cpu" or "cuda"; None for a GPU if there is one); `overwrite`: replace an
            existing `out`; `resume`: continue an interrupted run; `tensorboard`: write TensorBoard
            event files; `progress`: a function called with (journal line, total steps).
    """
    with open_group(options.get("device")) as group, _claim(group, out, model, options) as out:
        return _Run(group, model, plan, out, data, settings, None, None, **options).all()


def _claim(
    group: Group, out: str | Path, model: str | Path, options: dict[str, Any]
) -> AbstractContextManager[Path]:
    """The output, claimed by the one process that writes it."""
    if not group.first:
        return nullcontext(resolve_output(out))
    overwrite, resume = (bool(options.get(word)) for word in ("overwrite", "resume"))
    return claim_output(out, overwrite=overwrite, resume=resume, sources=[model])


@dataclass
class _Options:
    device: str | None = None
    overwrite: bool = False
    resume: bool = False
    tensorboard: bool = False
    progress: Callable[[Line, int], None] = field(default=lambda _, __: None)


def _read_options(options: dict[str, Any]) -> _Options:
    known = [each.name for each in fields(_Options)]
    for name in options:
        if name not in known:
            raise PlanError(
                f"{unknown_name('option', name, known)}; how it is trained goes into settings, a "
                "TrainingSettings"
            )
    return _Options(**options)


class _Run:
    def __init__(
        self,
        group: Group,
        model: str | Path,
        plan: str | Plan,
        out: Path,
        data: str | Path | Sequence[str | Path],
        settings: TrainingSettings | None,
        losses: DistillSettings | None,
        targets: Path | None = None,
        **options: Any,
    ) -> None:
        self.group, self.device = group, group.device
        check_settings("settings", settings, TrainingSettings)
        check_settings("losses", losses, DistillSettings)
        # what it lacks is found before the model is opened
        trained = training_plan(plan)
        if targets is not None and not (losses is not None and losses.top_k):
            raise PlanError(
                f"--targets {targets}: a run keeps its teacher's predictions only with --set "
                "top_k=K: add it, or leave --targets out"
            )
        self.out, self.losses, self.targets = out, losses, targets
        self.settings = TrainingSettings() if settings is None else settings
        self.options = _read_options(options)
        if self.options.tensorboard:
            check_tensorboard()
        self.source = open_source(model)
        given = [data] if isinstance(data, str | Path) else data
        self.data = [str(reference) for reference in given]
        self.skeleton = Skeleton(self.source)
        check_positions(self.skeleton.model.config, self.settings.length, self.source.reference)
        self.corpus = Corpus(
            self.data,
            partial_directory(self.out) / "tokenizer.json",
            end_token(self.source.config),
            self._generate_data if losses is not None else None,
            self._vocabulary,
        )
        self.plan = plan_of(self.skeleton.model, trained)
        self._check_top_k()
        check_source(self.skeleton)

    @property
    def _vocabulary(self) -> int:
        return int(cast(Any, self.skeleton.model).config.vocab_size)

    def _check_top_k(self) -> None:
        """PlanError where the teacher has fewer tokens than are to be kept of its predictions."""
        most = self._vocabulary
        if self.losses is not None and self.losses.top_k > most:
            raise PlanError(
                f"top_k={self.losses.top_k}: the teacher predicts {most} tokens: give --set "
                f"top_k=K with K up to {most}, or 0 to run the teacher beside the student"
            )

    def all(self) -> Trained:
        """Train the student, then pack its weights into the checkpoint."""
        partial = partial_directory(self.out)
        writer = self._writer() if self.group.first else None
        state = partial / STATE
        if writer is not None:
            self._begin(writer)
        self.group.barrier()
        sequences = Sequences(
            self._tokens(state / "tokens"), self.settings.length, self.settings.seed
        )
        student, speed = self._student()
        objective, speed = self._objective(student, sequences, state, speed)
        paths = RunPaths(state=state, journal=partial, tensorboard=self.options.tensorboard)
        last: list[Line] = []

        def record_line(line: Line, steps: int) -> None:
            last[:] = [line]
            self.options.progress(line, steps)

        Loop(student, objective, sequences, self.settings, paths, speed, self.group).run(
            record_line
        )
        student.model.eval()
        self.group.gather(student)
        refresh(student.quantized)
        if writer is not None:
            write_student(self.skeleton, student, self.plan, writer)
        self.group.barrier()
        return Trained(directory=self.out, last=last[0] if last else None)

    def _begin(self, writer: PackedWriter) -> None:
        """Keeps the tokens of the run; data that is refused leaves no unfinished run behind."""
        try:
            with disk_errors(writer.partial, None):
                self.source.save_companions(writer.partial)
            tokens = self._tokens(writer.state / "tokens")
            Sequences(tokens, self.settings.length, self.settings.seed)
        except (PlanError, UnsupportedError):
            if not writer.resumed:
                writer.discard()
            raise

    def _writer(self) -> PackedWriter:
        options = self.options
        return PackedWriter(
            self.out, self._identity(), overwrite=options.overwrite, resume=options.resume
        )

    @cached_property
    def teacher(self) -> Student:
        """The unquantized source model, in the dtype of `settings.precision`."""
        model = _load_model(Skeleton(self.source), self.device, self.settings.dtype)
        if self.device.type == "cuda":
            fuse_modules(model)
        return Student(model.eval(), {}, self.settings.dtype)

    def _generate_data(self, tokens: int, beginnings: Tensor) -> Iterator[Tensor]:
        assert self.losses is not None
        return write_texts(
            self.source,
            self.teacher,
            partial_directory(self.out),
            tokens,
            beginnings,
            length=self.losses.generated_length,
            seed=self.settings.seed,
        )

    def _objective(
        self, student: Student, sequences: Sequences, state: Path, speed: Speed
    ) -> tuple[Objective, Speed]:
        losses = self.losses
        if losses is None:
            return CrossEntropy(student), speed
        if losses.top_k:
            return CachedDistillation(student, self._targets(sequences, state), losses), speed
        # forward and backward are three times a forward pass; the teacher makes it four
        speed = Speed(flops=speed.flops * 4 / 3, peak=speed.peak)
        return Distillation(student, self.teacher, losses), speed

    def _targets(self, sequences: Sequences, state: Path) -> Targets:
        assert self.losses is not None
        directory = self.targets or state / "targets"
        identity = TargetsIdentity(
            teacher_sha256=self.source.sha256(),
            tokens_sha256=sequences.tokens.note.sha256,
            length=self.settings.length,
            k=self.losses.top_k,
            temperature=self.losses.temperature,
            precision=self.settings.precision,
        )
        if self.group.first and not has_targets(directory):
            write_targets(directory, identity, self.teacher, sequences)
            # the cached targets replace the teacher: its memory is free from here on
            del self.teacher
        self.group.barrier()
        return Targets(directory, identity)

    def _identity(self) -> RunIdentity:
        how = {
            "data": self.data,
            "settings": self.settings.model_dump(mode="json", exclude={"save_every", "log_every"}),
            "losses": self.losses.model_dump(mode="json") if self.losses is not None else None,
        }
        return RunIdentity(
            source=SourceInfo(
                reference=self.source.reference,
                sha256=self.source.sha256(),
                size_bytes=self.source.size_bytes,
                parameters=self.source.parameter_count,
            ),
            calibration=None,
            plan={**self.plan.model_dump(mode="json", exclude={"calibration"}), "training": how},
            versions=library_versions(),
            units=units_of(self.skeleton),
        )

    def _tokens(self, directory: Path) -> TokenFile:
        settings = self.settings
        step = settings.accumulate * settings.sequences * self.group.world_size
        most = settings.steps * step * settings.length
        return keep_tokens(directory, self.corpus.chunks(most), ", ".join(self.data))

    def _student(self) -> tuple[Student, Speed]:
        settings, device = self.settings, self.device
        model = _load_model(self.skeleton, device, torch.float32)
        speed = Speed(
            flops=3 * forward_flops(model, settings.length),
            peak=peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None,
        )
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        if device.type == "cuda" and not settings.compile:
            fuse_modules(model)
        quantized = swap(model, self.plan, settings.dtype)
        student = Student(model, quantized, settings.dtype)
        self.group.shard(student, keep_codes=settings.keep_codes)
        if settings.checkpoint_activations:
            student.checkpoint_activations()
        if settings.compile:
            student.compile(keep_inputs=settings.keep_inputs)
        return student, speed


def _load_model(skeleton: Skeleton, device: torch.device, dtype: torch.dtype) -> Any:
    for name in [name for name, _ in skeleton.model.named_parameters()]:
        skeleton.put(name, skeleton.read(name).to(device, dtype))
    return skeleton.model.to(device)
