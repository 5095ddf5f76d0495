"""Objective of a distillation: the student beside its teacher, on the same tokens."""

import torch
from torch import Tensor

from tercet.compress.distill.settings import DistillSettings
from tercet.compress.qat.student import Student
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.compress.training.loop import Losses
from tercet.compress.training.phases import Phases
from tercet.ops.linear_kl import linear_kl


class Distillation:
    """The loss of a student against a teacher that sees the same tokens.

    Args:
        teacher: not trained; on the student's device.
        settings: the parts of the loss.
    """

    def __init__(self, teacher: Student, settings: DistillSettings) -> None:
        self.teacher, self.settings = teacher, settings

    def __call__(self, student: Student, ids: Tensor, first: int, phases: Phases) -> Losses:
        """Scalars by name; "loss" is their weighted sum."""
        del first
        with phases("teacher"), torch.no_grad():
            wanted = self.teacher.hidden(ids)
            head = self.teacher.head()
        with phases("forward"):
            losses: Losses = {}
            hidden = student.hidden(ids)
            own = student.head()
            losses["divergence"] = linear_kl(
                hidden, own, wanted, head,
                temperature=self.settings.temperature, beta=self.settings.skew,
            )  # fmt: skip
            if self.settings.cross_entropy:
                losses["cross_entropy"] = next_token_loss(hidden, own, ids)
            return {"loss": self._sum(losses), **losses}

    def _sum(self, losses: Losses) -> Tensor:
        settings = self.settings
        weights = {
            "divergence": settings.divergence_weight,
            "cross_entropy": settings.cross_entropy,
            "hidden": settings.hidden,
            "attention": settings.attention,
        }
        parts = [weights[name] * value for name, value in losses.items()]
        return torch.stack(parts).sum()
