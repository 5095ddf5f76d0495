"""Hidden-state loss: how far each layer's output is from the teacher's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.errors import PlanError

_SMALLEST = 1e-12


def hidden_state_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Mean over layers and tokens of |s - t|^2 / |t|^2.

    Relative to each token's own length: the first token's hidden state may be a thousand times
    longer than the others', and a plain squared error would see nothing else.

    Args:
        student, teacher: [B, T, H] of each layer, in order.

    Raises:
        PlanError: layers or widths differ.
    """
    shapes = [[list(h.shape) for h in states] for states in (student, teacher)]
    if shapes[0] != shapes[1]:
        raise PlanError(
            f"hidden states of {len(student)} and {len(teacher)} layers, {shapes[0][:1]} and "
            f"{shapes[1][:1]}: the hidden-state loss needs a teacher of the student's shape"
        )
    errors: list[Tensor] = []
    for own, wanted in zip(student, teacher, strict=True):
        target = wanted.detach().float()
        error = (own.float() - target).square().sum(-1)
        errors.append((error / target.square().sum(-1).clamp_min(_SMALLEST)).mean())
    return torch.stack(errors).mean()
