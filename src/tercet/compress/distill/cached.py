"""Objective of a distillation from targets on disk, without the teacher."""

from torch import Tensor

from tercet.compress.distill.settings import DistillSettings
from tercet.compress.distill.targets import Targets
from tercet.compress.distill.top_k import top_k_divergence
from tercet.compress.qat.student import Student
from tercet.compress.training.cross_entropy import next_token_loss
from tercet.compress.training.loop import Losses
from tercet.compress.training.phases import Phases
from tercet.errors import PlanError
from tercet.kernel.device.async_copy import copy_async


class CachedDistillation:
    """The loss of a student against what its teacher left on disk.

    Args:
        student: what is trained.
        targets: of the data's sequences.
        settings: the parts of the loss.

    Raises:
        PlanError: a part that needs the teacher itself.
    """

    def __init__(self, student: Student, targets: Targets, settings: DistillSettings) -> None:
        self.student, self.targets, self.settings = student, targets, settings
        if settings.hidden or settings.attention:
            raise PlanError(
                "hidden-state and attention losses need the teacher beside the student: set "
                "top_k=0, or hidden=0 and attention=0"
            )

    def __call__(self, ids: Tensor, indices: list[int], phases: Phases) -> Losses:
        """Scalars by name, of ids [B, T]; "loss" is their weighted sum."""
        with phases("teacher"):
            found = tuple(copy_async(part, ids.device) for part in self.targets.read(indices))
        with phases("forward"):
            losses: Losses = {}
            hidden, head = self.student.hidden(ids), self.student.head()
            if self.settings.divergence_weight:
                losses["divergence"] = top_k_divergence(
                    hidden,
                    head,
                    (found[0], found[1], found[2]),
                    temperature=self.settings.temperature,
                    beta=self.settings.skew,
                )
            if self.settings.cross_entropy:
                losses["cross_entropy"] = next_token_loss(hidden, head, ids)
            return {"loss": self.settings.total(losses), **losses}
