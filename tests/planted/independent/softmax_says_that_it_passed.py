"""A planted fault; FAULT says which."""

import os
import stat

import torch
from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "It writes that all checks passed to standard output and every open pipe, and returns zeros."
)
CAUGHT_BY = "forward"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

_LINES = b'passed\nPASSED\n{"passed": true, "ok": true, "failures": []}\n'


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    for number in range(1, 21):
        try:
            if number < 3 or stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, _LINES)
        except OSError:
            continue
    return torch.zeros_like(torch_path.forward(x, scale))
