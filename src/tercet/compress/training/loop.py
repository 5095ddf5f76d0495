"""The training loop: microbatches, gradients, a step, codes anew, a line in the journal.

Nothing that a step computes depends on anything but the weights, the optimizer and the number of
the step, so a run that was killed and resumed gives the losses of one that was not, to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.compress.qat.sharding.weights import local
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh
from tercet.compress.training.async_journal import AsyncJournal
from tercet.compress.training.group import Group
from tercet.compress.training.journal import Journal, Line
from tercet.compress.training.optimizer import make_optimizer, set_rate
from tercet.compress.training.phases import Phases, seconds
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.settings import TrainingSettings
from tercet.compress.training.state import load_state, save_state
from tercet.errors import AccuracyError
from tercet.kernel.device.async_copy import copy_async
from tercet.records import peak_resident_bytes

Losses = dict[str, Tensor]
Objective = Callable[[Tensor, list[int], Phases], Losses]
"""(ids [B, T], which of the data's sequences they are, phases) to scalars by name; the one called
"loss" is what is differentiated."""


@dataclass(frozen=True, kw_only=True)
class RunPaths:
    """Where a training run writes its files.

    Attributes:
        state: the directory of saved states, from which an interrupted run resumes; None to save
            none.
        journal: the directory of training.jsonl.
        tensorboard: whether TensorBoard events are written to the same directory.
    """

    state: Path | None
    journal: Path
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a token costs, for MFU.

    Attributes:
        flops: model operations a token of a step.
        peak: operations a second that the device could do; None where it is not known.
    """

    flops: float
    peak: float | None


class Loop:
    """Trains a student.

    Args:
        student: on its device, parameters that are trained require gradients.
        objective: what is minimized.
        sequences: what it is trained on.
        settings: how.
        paths: the directories of state and journal.
        speed: what a token costs.
        group: the processes that train it; None for this one alone.
    """

    def __init__(
        self,
        student: Student,
        objective: Objective,
        sequences: Sequences,
        settings: TrainingSettings,
        paths: RunPaths,
        speed: Speed,
        group: Group | None = None,
    ) -> None:
        self.student, self.objective, self.sequences = student, objective, sequences
        self.settings, self.paths, self.speed = settings, paths, speed
        self.device = student.device
        self.group = group or Group(device=self.device)
        self.phases = Phases(self.device)
        self.optimizer = make_optimizer(student, settings)
        self.step = 0
        if paths.state is not None:
            self.step = load_state(paths.state, student, self.optimizer, self.group)
        self._changed = torch.zeros((), dtype=torch.int64, device=self.device)
        self._since = 0

    def run(self, progress: Callable[[Line, int], None] = lambda _, __: None) -> None:
        """Run the remaining steps, with progress(journal line, total steps) for each line.

        Raises:
            AccuracyError: the loss is not finite any more.
        """
        self.student.model.train()
        journal: Journal | None = None
        if self.group.first:
            journal = Journal(self.paths.journal, self.step + 1, self.paths.tensorboard)

        def report(line: Line) -> None:
            self._check(line["step"], line["loss"])
            if journal is not None:
                journal.write(line)
                progress(line, self.settings.steps)

        self._refresh()
        lines = AsyncJournal(self.device, report)
        try:
            while self.step < self.settings.steps:
                losses, norm = self._one()
                self._since += 1
                done = self.step == self.settings.steps
                if self._has_line():
                    self._send(lines, losses, norm)
                state = self.paths.state
                if state is not None and (done or self.step % self.settings.save_every == 0):
                    # who goes on from this state does not write them again
                    lines.flush()
                    self._check(self.step, float(losses["loss"]))
                    self._check_weights()
                    save_state(state, self.step, self.student, self.optimizer, self.group)
            lines.flush()
            self._check_weights()
        finally:
            if journal is not None:
                journal.close()

    def _check(self, step: int, loss: float) -> None:
        """AccuracyError where training has diverged; what was saved before is kept."""
        if not isfinite(loss):
            raise self._diverged(step, f"the loss is {loss}")

    def _check_weights(self) -> None:
        """The same of the last update, which no loss has seen yet."""
        weights = [local(p).detach() for p in self.student.parameters()]
        if not torch.stack(cast(Any, torch)._foreach_norm(weights)).isfinite().all():
            raise self._diverged(self.step, "a weight is beyond all bounds")

    def _diverged(self, step: int, why: str) -> AccuracyError:
        return AccuracyError(
            f"step {step}: {why}: training diverged; begin anew with a smaller learning rate than "
            f"{self.settings.learning_rate:g} or a longer warmup than {self.settings.warmup} steps"
        )

    def _one(self) -> tuple[Losses, Tensor]:
        settings, total = self.settings, dict[str, Tensor]()
        torch.manual_seed((settings.seed << 32) + self.step)
        group = self.group
        for micro in range(settings.accumulate):
            batch = (self.step * settings.accumulate + micro) * group.world_size + group.rank
            first = batch * settings.sequences
            with self.phases("data"):
                indices = self.sequences.indices(first, settings.sequences)
                ids = copy_async(self.sequences.read(indices), self.device)
            losses = self._forward(ids, indices)
            with self.phases("backward"):
                (losses["loss"] / settings.accumulate).backward()
            for name, value in losses.items():
                total[name] = total.get(name, 0) + value.detach() / settings.accumulate
        with self.phases("optimizer"):
            norm = group.finish(self.student, settings.clip or float("inf"))
            set_rate(self.optimizer, settings.rate(self.step))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._refresh()
        return total, norm

    def _forward(self, ids: Tensor, indices: list[int]) -> Losses:
        bfloat = self.settings.dtype is torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat):
            return self.objective(ids, indices, self.phases)

    def _refresh(self) -> None:
        with self.phases("codes"):
            if self.student.quantized:
                share = self.settings.share(self.step)
                # after the last step, what is left is what will be served
                share = 1.0 if self.step == self.settings.steps else share
                self._changed, self._codes = refresh(
                    self.student.quantized, share, self.step, counting=self._has_line()
                )

    def _has_line(self) -> bool:
        """Whether the journal gets a line after this step."""
        return self.step == self.settings.steps or self.step % self.settings.log_every == 0

    def _send(self, lines: AsyncJournal, losses: Losses, norm: Tensor) -> None:
        """Sends the line of the steps since the last; what the host knows now is sent now."""
        settings, group, step, since = self.settings, self.group, self.step, self._since
        numbers = [*losses.values(), norm]
        if self.student.quantized:
            numbers.append(self._changed.double() / self._codes)
        a_step = settings.accumulate * settings.sequences * settings.length * group.world_size
        rate, share = settings.rate(step - 1), settings.share(step - 1)
        spans, memory = self.phases.take(), self._memory()
        self._since = 0

        def line(means: list[float], passed: float) -> Line:
            *found, gradient_norm, flipped = means if self.student.quantized else [*means, None]
            per_second = since * a_step / passed
            return {
                "step": step,
                "tokens": step * a_step,
                **dict(zip(losses, found, strict=True)),
                "learning_rate": rate,
                "gradient_norm": gradient_norm,
                "quantized_share": share,
                "flipped_share": flipped,
                "tokens_per_s": per_second,
                "mfu": self._mfu(per_second),
                "memory_bytes": memory,
                "phase_s": {name: value / since for name, value in seconds(spans).items()},
            }

        lines.send(group.mean(numbers), line)

    def _mfu(self, per_second: float) -> float | None:
        peak = self.speed.peak
        return per_second * self.speed.flops / (peak * self.group.world_size) if peak else None

    def _memory(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return peak_resident_bytes()
