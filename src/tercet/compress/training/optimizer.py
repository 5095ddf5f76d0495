"""Optimizer: AdamW over a student's parameters, matrices and quantization steps apart."""

import torch
from torch import nn

from tercet.compress.qat.student import Student
from tercet.compress.training.settings import TrainingSettings


def make_optimizer(student: Student, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW in three groups: matrices (decayed), vectors, learned steps (a rate of their own)."""
    steps = {id(m.step) for m in student.quantized.values() if m.step is not None}
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    learned: list[nn.Parameter] = []
    for parameter in student.parameters():
        if id(parameter) in steps:
            learned.append(parameter)
        else:
            (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay, "rate_share": 1.0},
        {"params": vectors, "weight_decay": 0.0, "rate_share": 1.0},
        {"params": learned, "weight_decay": 0.0, "rate_share": settings.step_rate_share},
    ]
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
