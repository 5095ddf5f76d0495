"""Training of one student against the clock."""

import time
from collections.abc import Callable, Iterator

import torch
from graph_step import Step
from journal import Journal
from reading import Batches
from recipe import Recipe
from torch import Tensor

from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh
from tercet.compress.training.group import Group

GLANCES = (0.02, 0.05, *(tenth / 10 for tenth in range(1, 10)))
"""Shares of a student's time after which its perplexity is looked at."""
TOGETHER, TOLD = 8, 128
"""Steps after which processes agree on how much of the time is over, and after which it is told."""


class Training:
    """Steps until the time is over, the rate by the time that is left.

    Args:
        student, teacher: on one device, the teacher in eval mode.
        recipe: the learning rates.
        batches: what this process reads.
        ids: [B, T] int64, its windows.
        group: the processes.
        journal: of the first of them.
        glance: perplexity of the student as it is.
    """

    def __init__(
        self,
        student: Student,
        teacher: Student,
        recipe: Recipe,
        batches: Batches,
        ids: Tensor,
        *,
        group: Group,
        journal: Journal,
        glance: Callable[[Student], float],
    ) -> None:
        self._student, self._recipe, self._batches, self._ids = student, recipe, batches, ids
        self._group, self._journal, self._glance = group, journal, glance
        self._step = Step(student, teacher, ids, recipe, group)
        self._losses: list[float] = []
        self.steps = 0

    @property
    def tokens(self) -> int:
        """Read until now, by all processes."""
        return self.steps * self._ids.numel() * self._group.world_size

    def run(self, until: float, most_steps: int = 0) -> None:
        """Trains.

        Args:
            until: seconds of the journal's clock.
            most_steps: after which it is over, too, and by which the rate then falls; 0 for none.
        """
        self._batches.fill(self._ids)
        how = self._step.capture()
        begin = self._journal.seconds()
        self._journal.say(
            "begins",
            student=self._recipe.name,
            rate=self._recipe.rate,
            step=how,
            budget_s=round(until - begin, 1),
            processes=self._group.world_size,
        )
        start, marks = time.perf_counter(), list(GLANCES)
        for done in self._shares_done(until - begin, most_steps):
            spent = time.perf_counter() - start
            if self.steps and self.steps % TOLD == 0:
                self._tell(done, spent)
            if marks and done >= marks[0]:
                marks.pop(0)
                self._look()
            self._step.set_rate(self._recipe.rate_at(done))
            for _ in range(TOGETHER):
                self._batches.fill(self._ids)
                self._step()
                self.steps += 1
        if self._ids.is_cuda:
            torch.cuda.synchronize()
        refresh(self._student.quantized)
        spent = time.perf_counter() - start
        self._journal.say(
            "trained",
            student=self._recipe.name,
            steps=self.steps,
            tokens=self.tokens,
            tokens_per_s=round(self.tokens / spent),
            loss=self._losses[-5:],
        )

    def _shares_done(self, seconds: float, most_steps: int) -> Iterator[float]:
        """How much of the time is over, as all processes see it, while there is some left."""
        start = time.perf_counter()
        while True:
            done = (time.perf_counter() - start) / max(seconds, 1e-3)
            if most_steps:
                done = max(self.steps / most_steps, float(done >= 1))
            loss = self._step.loss
            mean, found = self._group.mean([loss.new_tensor(done), loss]).tolist()
            if self.steps:
                self._losses.append(found)
            if mean >= 1:
                return
            yield mean

    def _tell(self, done: float, spent: float) -> None:
        recent = self._losses[-TOLD // TOGETHER :]
        self._journal.say(
            "step",
            student=self._recipe.name,
            step=self.steps,
            tokens=self.tokens,
            loss=round(sum(recent) / len(recent), 4),
            norm=round(float(self._step.norm), 3),
            rate=round(self._recipe.rate_at(done), 7),
            tokens_per_s=round(self.tokens / spent),
        )

    def _look(self) -> None:
        if self._group.first:
            found = round(self._glance(self._student), 3)
            self._journal.say(
                "glance", student=self._recipe.name, tokens=self.tokens, perplexity=found
            )
