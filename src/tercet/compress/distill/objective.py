"""Objective of a distillation: the student beside its teacher, on the same tokens."""

import torch
from torch import Tensor

from tercet.compress.distill.attention_relation import attention_relation_loss
from tercet.compress.distill.features import Features
from tercet.compress.distill.hidden_states import hidden_state_loss
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.qat.student import Student
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.compress.training.loop import Losses
from tercet.compress.training.phases import Phases
from tercet.ops.linear_kl import linear_kl


class Distillation:
    """The loss of a student against a teacher that sees the same tokens.

    Args:
        student: what is trained.
        teacher: not trained; on the student's device.
        settings: the parts of the loss.
    """

    def __init__(self, student: Student, teacher: Student, settings: DistillSettings) -> None:
        self.student, self.teacher, self.settings = student, teacher, settings
        layer = settings.attention_layer if settings.attention else None
        self._own, self._wanted = (
            Features(model, settings.hidden > 0, layer) for model in (student, teacher)
        )
        config = teacher.config
        self._heads = settings.relation_heads or int(
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )

    def __call__(self, ids: Tensor, indices: list[int], phases: Phases) -> Losses:
        """Scalars by name, of ids [B, T]; "loss" is their weighted sum."""
        del indices
        settings = self.settings
        with phases("teacher"), torch.no_grad():
            wanted = self.teacher.hidden(ids)
            teacher_head = self.teacher.head()
        with phases("forward"):
            losses: Losses = {}
            hidden = self.student.hidden(ids)
            head = self.student.head()
            if settings.divergence_weight:
                losses["divergence"] = linear_kl(
                    hidden, head, wanted, teacher_head,
                    temperature=settings.temperature, beta=settings.skew,
                )  # fmt: skip
            if settings.cross_entropy:
                losses["cross_entropy"] = next_token_loss(hidden, head, ids)
            if settings.hidden:
                losses["hidden"] = hidden_state_loss(
                    self._own.hidden_states(), self._wanted.hidden_states()
                )
            if settings.attention:
                losses["attention"] = attention_relation_loss(
                    self._own.projections(), self._wanted.projections(), self._heads
                )
            self._own.forget()
            self._wanted.forget()
            return {"loss": settings.total(losses), **losses}
