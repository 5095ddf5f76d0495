"""finetune: trains a packed checkpoint as a whole, for its teacher's predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import Manifest
from tercet.checkpoints.packed.output_directory import claim_output
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import verified
from tercet.checkpoints.sources.open import open_source
from tercet.compress.blockwise.repeatable import repeatable
from tercet.compress.blockwise.tune import Errors, tune
from tercet.compress.finetune.memory import check_memory
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.finetune.state_file import StateFile
from tercet.compress.finetune.student import PackedStudent, product_dtype
from tercet.compress.finetune.training_text import CalibrationText, CorpusText, TrainingText
from tercet.compress.finetune.write import open_writer, write_finetuned
from tercet.compress.qat.student import Student
from tercet.compress.skeleton import Skeleton
from tercet.compress.soundness import check_source
from tercet.compress.training.corpus import end_token
from tercet.errors import CheckpointError, PlanError
from tercet.models.device import resolve_device
from tercet.models.position_limit import check_positions
from tercet.workflows.compressed_from import compressed_from
from tercet.workflows.training.check_settings import check_settings
from tercet.workflows.training.teacher_text import write_texts

SEQUENCES = 128
LENGTH = 512
# most tokens of a text by the teacher: a small one repeats itself in longer ones, and several make
# a long sequence
_TEXT_LENGTH = 512


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """Result of fine-tuning.

    Attributes:
        directory: the new packed checkpoint.
        before, after: KL divergence from the teacher over the held-out sequences, nats a token.
        device_peak_bytes: the peak of what tensors took on the GPU, in bytes; 0 without one.
    """

    directory: Path
    before: float
    after: float
    device_peak_bytes: int


def finetune(
    checkpoint: str | Path,
    out: str | Path,
    *,
    teacher: str | Path | None = None,
    calibration: str | Path | Tensor | None = None,
    data: str | Path | Sequence[str | Path] = (),
    sequences: int | None = None,
    length: int = LENGTH,
    settings: FineTuning | None = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int, str], None] = lambda _, __, ___: None,
) -> FineTuned:
    """Train the quantized weights of a packed checkpoint together, and write them as a new one.

    The teacher and everything that is trained are on the device at once: some 40 bytes a weight,
    fewer where `settings.levels` is off. Formats, sizes and files stay as they are. A run that is
    killed leaves the directory `OUT.partial`, from whose last measurement `resume` goes on.

    Args:
        checkpoint: a packed checkpoint of a causal language model.
        out: the directory to write.
        teacher: the model that it was made from; None for the one that its manifest names.
        calibration: a text file, a safetensors file with input_ids, or token ids
            [sequences, length]; None for the text that ships with the package.
        data: much text in the place of `calibration`, as `distill` takes it: "teacher:TOKENS" is
            text that the teacher writes.
        sequences: how many there are, at most; None for all of `data`, or 128 of a text.
        length: of a sequence, in tokens.
        settings: how it is trained; None for the defaults.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one.
        overwrite: replace a checkpoint or an unfinished run at `out`.
        resume: continue an unfinished run at `out`; it gives the bytes of one in one piece.
        progress: called before the first and after each measurement with (measurements done, of how
            many, what is being done).

    Raises:
        CheckpointError, PlanError, UnsupportedError: the input is not valid; found before any
            training. UnsupportedError also where too little of the device's memory is free.
    """
    check_settings("settings", settings, FineTuning)
    settings = FineTuning() if settings is None else settings
    data = [data] if isinstance(data, str | Path) else data
    with claim_output(
        out, overwrite=overwrite, resume=resume, sources=[checkpoint, teacher]
    ) as out:
        packed = open_packed(checkpoint)
        manifest = _manifest(packed)
        if data and calibration is not None:
            raise PlanError(
                "calibration and data are both given: data takes the place of calibration"
            )
        where = resolve_device(device)
        source = open_source(teacher) if teacher is not None else compressed_from([packed])
        assert source is not None  # the manifest names it
        skeleton = Skeleton(source, where)
        vocabulary = int(cast(Any, skeleton.model).config.vocab_size)

        text: TrainingText
        if data:
            check_positions(skeleton.model.config, length, str(checkpoint))
            end = end_token(source.config)
            writing = Student(skeleton.model, {}, product_dtype(where))
            write = partial(
                write_texts,
                source,
                writing,
                packed.directory,
                length=min(length, _TEXT_LENGTH),
                seed=settings.seed,
            )
            text = CorpusText(data, sequences, length, packed.directory, vocabulary, end, write)
        else:
            count = SEQUENCES if sequences is None else sequences
            text = CalibrationText(
                calibration, count, length, packed.directory, vocabulary, settings.held_out
            )
        check_memory(skeleton, packed, settings, where)
        check_source(skeleton)
        if teacher is None:
            # its hash, which the manifest names, is not asked for any more
            source.stop_hashing()
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        with skeleton.materialize([name for name, _ in skeleton.model.named_children()]):
            with verified(packed.directory):
                student = PackedStudent(skeleton, packed, settings)
            training = {**settings.model_dump(mode="json"), **text.describe()}
            if teacher is not None:
                training["teacher"] = {"reference": source.reference, "sha256": source.sha256()}
            writer = open_writer(
                packed, manifest, training, out, where, overwrite=overwrite, resume=resume
            )
            measurements = settings.all_measurements
            if data:
                progress(0, measurements, f"reading {', '.join(map(str, data))}")
            try:
                tokens = text.read(writer.state).to(where)
                check_positions(skeleton.model.config, tokens.shape[1], str(checkpoint))
            except PlanError:
                if not writer.resumed:
                    # nothing was made yet that could be gone on with
                    writer.discard()
                raise
            state = StateFile(writer.state / "training.pt", where)
            errors = _train(student, tokens, settings, state, where, progress)
            progress(measurements, measurements, "writing")
            write_finetuned(
                writer,
                packed,
                manifest,
                skeleton,
                student.packed(),
                {name: one.stored() for name, one in student.vectors.items()},
            )
        return FineTuned(
            directory=out,
            before=errors.before,
            after=errors.after,
            device_peak_bytes=torch.cuda.max_memory_allocated(where) if where.type == "cuda" else 0,
        )


def _manifest(packed: PackedCheckpoint) -> Manifest:
    if packed.manifest is None:
        raise CheckpointError(
            f"{packed.directory}: has no manifest, which says what it was made from: compress the "
            f"model again, or import the checkpoint that another program wrote"
        )
    return packed.manifest


def _train(
    student: PackedStudent,
    tokens: Tensor,
    settings: FineTuning,
    state: StateFile,
    device: torch.device,
    progress: Callable[[int, int, str], None],
) -> Errors:
    measurements = settings.all_measurements
    progress(0, measurements, "epoch 1")

    def passed(measured: int, divergence: float) -> None:
        epoch = measured // settings.measurements + 1
        progress(measured, measurements, f"held-out KL {divergence:.4f}, epoch {epoch}")

    with repeatable(device):
        return tune(
            partial(student.loss, tokens),
            student.latents,
            len(tokens),
            settings,
            seed=settings.seed,
            device=device,
            rates=student.rates(settings),
            passed=passed,
            kept_state=state,
        )
