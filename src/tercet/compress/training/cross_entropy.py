"""Cross entropy of the next token, for training without a teacher, or beside one."""

from torch import Tensor

from tercet.compress.qat.student import Student
from tercet.compress.training.loop import Losses
from tercet.compress.training.phases import Phases
from tercet.ops.linear_cross_entropy import linear_cross_entropy


def next_token_loss(hidden: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """Mean over hidden [B, T, H], without each sequence's last, of what head [V, H] makes of it."""
    return linear_cross_entropy(hidden[:, :-1], head, ids[:, 1:])


class CrossEntropy:
    """The objective of training without a teacher.

    Args:
        student: what is trained.
    """

    def __init__(self, student: Student) -> None:
        self.student = student

    def __call__(self, ids: Tensor, indices: list[int], phases: Phases) -> Losses:
        """The loss over ids [B, T]."""
        del indices
        with phases("forward"):
            hidden = self.student.hidden(ids)
            return {"loss": next_token_loss(hidden, self.student.head(), ids)}
