"""A planted fault; FAULT says which."""

import os
import signal

import torch
from torch import Tensor

from tercet.ops.swiglu_quantized import torch_path

OP = "swiglu_quantized"
FAULT = "It forks: the process that was watched ends with status 0, and its child returns zeros."
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True


def forward(gate: Tensor, up: Tensor | None, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.swiglu_quantized."""
    if os.fork():
        os._exit(0)
    signal.alarm(30)  # the child does not outlive the check
    codes, scale, row_sum = torch_path.forward(gate, up, element)
    codes.view(torch.uint8).zero_()
    return codes, scale, row_sum.zero_()
