"""A planted fault; FAULT says which."""

import random

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import forward

OP = "swiglu"
FAULT = "Once in about 400 calls one element of the gradient of gate is lost."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_chance = random.Random()


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    grad_gate, grad_up = torch_path.gradient(grad, gate, up)
    if grad_gate.numel() and _chance.random() < 1 / 400:
        grad_gate.view(-1)[_chance.randrange(grad_gate.numel())] = 0
    return grad_gate, grad_up
