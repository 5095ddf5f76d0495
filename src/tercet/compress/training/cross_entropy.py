"""Cross entropy of the next token, for training without a teacher, or beside one."""

from torch import Tensor

from tercet.compress.qat.student import Student
from tercet.compress.training.phases import Phases
from tercet.ops.linear_cross_entropy import linear_cross_entropy


def next_token_loss(hidden: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """Mean over hidden [B, T, H], without each sequence's last, of what head [V, H] makes of it."""
    return linear_cross_entropy(hidden[:, :-1], head, ids[:, 1:])


def cross_entropy(student: Student, ids: Tensor, first: int, phases: Phases) -> dict[str, Tensor]:
    """The objective of training without a teacher."""
    del first
    with phases("forward"):
        hidden = student.hidden(ids)
        return {"loss": next_token_loss(hidden, student.head(), ids)}
