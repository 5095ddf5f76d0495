"""compress: quantizes a source model by a plan into a packed checkpoint, unit by unit.

Unit 0 holds the parameters outside of the repeated layers (embeddings, norms), units 1..L the
layers, and the last unit the linears behind the layers (an untied head, a pooler), if there are
any. Each unit is written to disk before the next begins; a resumed run replays the finished units
from disk, so it writes the same bytes as an uninterrupted run.
"""

import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock

import torch
from torch import Tensor

from tercet.checkpoints.atomic import disk_errors
from tercet.checkpoints.packed.layout import ModuleInfo, SourceInfo
from tercet.checkpoints.packed.output_directory import claim_output
from tercet.checkpoints.packed.write import (
    PackedWriter,
    RunIdentity,
    UnitNote,
    library_versions,
)
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.compress import memory, text
from tercet.compress.algorithm import Quantized
from tercet.compress.allocator import return_freed_memory
from tercet.compress.blockwise.tune import split_sequences
from tercet.compress.calibration.module_hooks import transforming
from tercet.compress.calibration.stream import Stream
from tercet.compress.plan import Plan, load_plan
from tercet.compress.ptq import algorithm
from tercet.compress.skeleton import Skeleton
from tercet.compress.soundness import check_source
from tercet.compress.unit_file import read_back, read_vectors, stored_parts
from tercet.compress.unit_quantizer import UnitQuantizer
from tercet.compress.units import Units, match_rules, plan_of, quantized_last
from tercet.errors import PlanError
from tercet.formats import check_weight
from tercet.models.device import resolve_device
from tercet.records import peak_resident_bytes

# that wait for the disk: the first ones wait for the source's hash
_UNITS_WAITING = 3


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Callbacks of a compression run; each defaults to doing nothing.

    Attributes:
        planned: called once before the work begins, with the memory estimate and the names of the
            modules that no rule matches.
        unused: called then with the name of the class in transformers and the weights that it does
            not use, if there are any.
        idle: called then with the patterns of the rules that match nothing, if there are any.
        unit: called before each unit with (finished units, total units, name of the unit).
    """

    planned: Callable[[memory.Estimate, list[str]], None] = lambda _, __: None
    unused: Callable[[str, list[str]], None] = lambda _, __: None
    idle: Callable[[list[str]], None] = lambda _: None
    unit: Callable[[int, int, str], None] = lambda _, __, ___: None


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """Result of a compression run.

    Attributes:
        directory: the packed checkpoint.
        modules: format, algorithm, options and error of each packed module, by name.
        unmatched: names of what no rule matches and stays uncompressed, as Matched has them.
        unused: weights of the source that its class in transformers does not use; they are not in
            the checkpoint.
        idle: the patterns of rules that match no module, or none before another rule does.
        estimate: the memory estimate made before the run.
        peak_bytes: the process's measured peak resident memory, in bytes.
        device_peak_bytes: the peak of what tensors took on the GPU, in bytes; 0 without one.
    """

    directory: Path
    modules: dict[str, ModuleInfo]
    unmatched: list[str]
    unused: list[str]
    idle: list[str]
    estimate: memory.Estimate
    peak_bytes: int
    device_peak_bytes: int


# accelerate, transformers and torch keep what a run changes (where new parameters lie, how products
# are rounded) for the whole process: two threads at once gave other codes, or failed
_ONE_RUN_A_PROCESS = RLock()


def compress(
    model: str | Path | ModelSource,
    plan: str | Path | Plan,
    out: str | Path,
    *,
    calibration: str | Path | Tensor | None = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Compressed:
    """Quantize a model and write it as a packed checkpoint.

    A run that fails or is killed leaves the directory `OUT.partial`, from which `resume` continues.
    Runs in several threads of a process take turns.

    Args:
        model: a model directory, a Hugging Face hub name, a GGUF file or a fetched model's name.
        plan: a shipped plan ("ternary"), a number format ("int3-g128"), a plan file or a Plan.
        out: the directory to write.
        calibration: a text file, a .jsonl file with a key text, a safetensors file with
            input_ids, or token ids [sequences, length]; None for the text that ships with the
            package.
        device: "cpu", "cuda" or "cuda:N", where the arithmetic is done, a layer at a time; None for
            the GPU where there is one. What a GPU gives is as good but not the same to the bit.
        overwrite: replace a checkpoint or an unfinished run at `out`.
        resume: continue an unfinished run at `out`.
        progress: callbacks for progress messages.

    Raises:
        CheckpointError, FormatError, PlanError: the input is not valid; most errors are found
            before any work begins.
        UnsupportedError: there is no such device.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    sources = model.files if isinstance(model, ModelSource) else [model]
    claim = claim_output(out, overwrite=overwrite, resume=resume, sources=sources)
    with claim as out, _ONE_RUN_A_PROCESS:
        if isinstance(calibration, (str, Path)):
            text.check_file(Path(calibration))
        where = resolve_device(device)
        source = model if isinstance(model, ModelSource) else open_source(model)
        # once: of a GGUF file it takes seconds to make
        with TemporaryDirectory() as tokenizer, ThreadPoolExecutor(1) as thread:
            with disk_errors(Path(tokenizer), None):
                source.save_companions(tokenizer)
            try:
                run = _Run(source, plan, out, progress or Progress(), where, thread)
                run.open(calibration, Path(tokenizer), overwrite=overwrite, resume=resume)
                return run.all_units()
            finally:
                source.stop_hashing()


class _Run:
    def __init__(
        self,
        source: ModelSource,
        plan: Plan,
        out: Path,
        progress: Progress,
        device: torch.device,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.source, self.out, self.progress = source, out, progress
        self.thread = thread
        self.skeleton = Skeleton(source, device)
        self.plan = plan_of(self.skeleton.model, plan)
        matched = match_rules(self.skeleton, self.plan)
        self.rules, self.unmatched, self.idle = matched.rules, matched.unmatched, matched.idle
        self.writing: deque[Future[None]] = deque()
        self.quantizer = UnitQuantizer(self.skeleton, self.plan, self.rules)
        self.table = quantized_last(self.skeleton.model, self.rules)
        parts = Units.of(self.skeleton)
        self.before, self.layers, self.behind = parts.before, parts.layers, parts.behind
        self.behind_parameters, self.units = parts.behind_parameters, len(parts.parameters)

    @property
    def needs_inputs(self) -> bool:
        """Whether any rule's algorithm needs calibration inputs, or training does."""
        algorithms = (algorithm(rule.algorithm) for rule in self.rules.values())
        return self.plan.blockwise is not None or any(one.needs_inputs for one in algorithms)

    @property
    def follows_teacher(self) -> bool:
        """Whether the uncompressed model's hidden states are followed."""
        return bool(self.plan.calibration.match_teacher) or self.plan.blockwise is not None

    def _held_out(self) -> list[int]:
        """The calibration sequences that blockwise training measures on."""
        count = self.plan.calibration.sequences
        if self.plan.blockwise is None or count < 2:
            return []
        return [int(at) for at in split_sequences(count, self.plan.blockwise.held_out)[0]]

    def open(
        self,
        calibration: str | Path | Tensor | None,
        tokenizer: Path,
        *,
        overwrite: bool,
        resume: bool,
    ) -> None:
        """Estimates and checks; begins to write, behind the hash of a run that is a new one."""
        self.tokens: Tensor | None = None
        if self.needs_inputs:
            self.tokens = text.read_calibration(
                calibration,
                tokenizer,
                self.plan.calibration,
                self.source.reference,
                self._held_out(),
            )
            text.check_fits(self.tokens, self.skeleton.model.config, self.source.reference)
            if self.plan.blockwise and len(self.tokens) < 2:
                raise PlanError(
                    "1 calibration sequence: blockwise trains on some and measures on others: "
                    "give more with --sequences or --calibration"
                )
        self.estimate = memory.estimate(
            self.skeleton,
            self.rules,
            before=self.before,
            behind=self.behind_parameters,
            calibration=(self.tokens.shape[0], self.tokens.shape[1])
            if self.tokens is not None
            else None,
            streams=2 if self.follows_teacher else 1,
            blockwise=self.plan.blockwise,
            table=self.table,
        )
        self.progress.planned(self.estimate, self.unmatched)
        if self.skeleton.unused:
            self.progress.unused(type(self.skeleton.model).__name__, self.skeleton.unused)
        if self.idle:
            self.progress.idle(self.idle)
        check_source(self.skeleton, self.estimate.kept_bytes)
        return_freed_memory()
        self.opening = self.thread.submit(
            self._open_writer, tokenizer, overwrite=overwrite, resume=resume
        )
        self.resumed = resume
        if resume:
            self.opening.result()

    def _open_writer(self, tokenizer: Path, *, overwrite: bool, resume: bool) -> PackedWriter:
        identity = RunIdentity(
            source=SourceInfo(
                reference=self.source.reference,
                sha256=self.source.sha256(),
                size_bytes=self.source.size_bytes,
                parameters=self.source.parameter_count,
            ),
            calibration=text.describe(self.tokens) if self.tokens is not None else None,
            plan=self.plan.model_dump(mode="json"),
            versions=library_versions(),
            units=self.units,
            device=self.skeleton.device.type,
        )
        writer = PackedWriter(self.out, identity, overwrite=overwrite, resume=resume)
        with disk_errors(writer.partial, None):
            # files alone: a copied tree takes the mode 0700 of a temporary directory with it
            for path in tokenizer.iterdir():
                shutil.copyfile(path, writer.partial / path.name)
        return writer

    def all_units(self) -> Compressed:
        self._quantize_all()
        self._wait_for_writing(0)
        config = {**self.source.config, "architectures": [type(self.skeleton.model).__name__]}
        manifest = self.opening.result().finish(config)
        return Compressed(
            directory=self.out,
            modules=manifest.modules,
            unmatched=self.unmatched,
            unused=self.skeleton.unused,
            idle=self.idle,
            estimate=self.estimate,
            peak_bytes=peak_resident_bytes(),
            device_peak_bytes=self._device_peak_bytes(),
        )

    def _quantize_all(self) -> None:
        self.stream: Stream | None = None
        self.begun = 0
        with self.skeleton.materialize(self.before):
            teacher = None
            if self.table is None:
                self._tell("embeddings")
            if self.tokens is not None and self.follows_teacher:
                teacher = Stream.start(self.skeleton, self.tokens).hidden
            if self.table is None:
                self.quantizer.overwrite(self._unit(0, self.before, self.quantizer.data_free))
            if self.tokens is not None:
                self.stream = Stream.start(self.skeleton, self.tokens)
                self.stream.teacher = teacher
        if not (self.behind or self.table):
            self.skeleton.release(self.before)
        for index, name in enumerate(self.skeleton.layer_names()):
            self._tell(name)
            self._layer(index, name)
        if self.behind:
            self._tell("head")
            with self.skeleton.materialize(self.before + self.behind_parameters):
                self._unit(
                    self.units - 1,
                    self.behind_parameters,
                    lambda names: self.quantizer.behind(self.stream, self.tokens, names),
                )
        if self.table:
            self._tell("embeddings")
            self._tied(self.table)
        self.progress.unit(self.units, self.units, "")

    def _tell(self, name: str) -> None:
        """Says that the next unit begins."""
        self.progress.unit(self.begun, self.units, name)
        self.begun += 1

    def _tied(self, table: str) -> None:
        """Unit 0, once it is known what its embedding reads as the head."""
        stream, tokens = self.stream, self.tokens
        assert stream is not None
        assert tokens is not None
        with self.skeleton.materialize(self.before):
            self._unit(
                0, self.before, lambda names: self.quantizer.tied(stream, tokens, names, table)
            )

    def _device_peak_bytes(self) -> int:
        device = self.skeleton.device
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0

    def _layer(self, index: int, name: str) -> None:
        layer = self.skeleton.layers[index]
        parameters = self.layers[index]
        replay = self._note(index + 1) is not None
        if replay and self.stream is None:
            self.skeleton.release(parameters)
            return
        with self.skeleton.materialize([name]):
            if replay and self.stream is not None:
                self.stream.advance_teacher(layer, index)
            quantized = self._unit(
                index + 1, parameters, lambda names: self.quantizer.layer(self.stream, index, names)
            )
            if replay and self.stream is not None:
                transforms = self.quantizer.put(quantized)
                if self.plan.blockwise:
                    writer = self.opening.result()
                    path = writer.partial / writer.file_name(index + 1)
                    self.quantizer.put_vectors(read_vectors(path, parameters))
                linears = {module: self.skeleton.module(module) for module in transforms}
                with transforming(linears, transforms):
                    self.stream.advance(layer, index)
            self.quantizer.drop_originals()
        self.skeleton.release(parameters)

    def _unit(
        self,
        unit: int,
        parameters: list[str],
        quantize: Callable[[list[str]], dict[str, Quantized]],
    ) -> dict[str, Quantized]:
        """Quantize a unit and write it, or read a finished unit back from disk."""
        names = [n for n in self.rules if f"{n}.weight" in set(parameters)]
        note = self._note(unit)
        if note is None:
            self._check_weights(names)
            quantized = quantize(names)
            return_freed_memory()
            self._write(unit, parameters, quantized)
            return_freed_memory()
            return quantized
        writer = self.opening.result()
        return read_back(writer.partial / writer.file_name(unit), note.entries)

    def _check_weights(self, names: list[str]) -> None:
        for name in names:
            check_weight(self.quantizer.weight(name), f"{name}.weight")

    def _write(self, unit: int, parameters: list[str], quantized: dict[str, Quantized]) -> None:
        tensors, entries, modules = stored_parts(quantized, self.rules, self.quantizer.weight)
        for parameter in parameters:
            module, _, part = parameter.rpartition(".")
            if part != "weight" or module not in quantized:
                trained = self.quantizer.vectors.get(parameter)
                tensors[parameter] = (
                    self.skeleton.read_stored(parameter) if trained is None else trained.cpu()
                )
        # beside the work on the next units
        self._wait_for_writing(_UNITS_WAITING)
        self.writing.append(
            self.thread.submit(lambda: self.opening.result().write(unit, tensors, entries, modules))
        )

    def _note(self, unit: int) -> UnitNote | None:
        return self.opening.result().note(unit) if self.resumed else None

    def _wait_for_writing(self, left: int) -> None:
        """Until at most that many units wait for the disk."""
        while len(self.writing) > left:
            self.writing.popleft().result()
