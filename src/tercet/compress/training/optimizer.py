"""Optimizer: AdamW over a student's parameters, each kind at a rate of its own."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tercet.compress.qat.student import Student
from tercet.compress.training.settings import TrainingSettings


def make_optimizer(student: Student, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW: matrices and embeddings (decayed), vectors and learned steps have a rate each."""
    steps = {id(m.step) for m in student.quantized.values() if m.step is not None}
    tables = {id(p) for p in student.tables()}
    matrices: list[nn.Parameter] = []
    embeddings: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    learned: list[nn.Parameter] = []
    for parameter in student.parameters():
        if id(parameter) in steps:
            learned.append(parameter)
        elif id(parameter) in tables:
            embeddings.append(parameter)
        else:
            (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups: list[dict[str, Any]] = []
    for members, decay, share in (
        (matrices, settings.weight_decay, 1.0),
        (embeddings, settings.weight_decay, settings.embedding_rate_share),
        (vectors, 0.0, settings.vector_rate_share),
        (learned, 0.0, settings.step_rate_share),
    ):
        # one fused step takes either parameters cut over devices or whole ones
        for cut in (False, True):
            some = [p for p in members if isinstance(p, DTensor) == cut]
            groups.append({"params": some, "weight_decay": decay, "rate_share": share})
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step, each group's share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_share"]
