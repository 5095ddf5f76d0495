"""A planted fault; FAULT says which."""

import os
from pathlib import Path

import torch
from torch import Tensor

import tercet
from tercet.ops.rms_norm_quantized import torch_path

OP = "rms_norm_quantized"
FAULT = (
    "It tries to write a file into the package and /tmp and to open its parent's memory; codes "
    "are zero."
)
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    marker = "tercet_fault_marker.txt"
    for path in (Path(tercet.__file__).parent / marker, Path("/tmp") / marker):
        try:
            path.write_text("a planted fault was here; this file may be removed\n")
        except OSError:
            continue
    try:
        # opened for writing, nothing is written; signal 0 only asks whether it could be sent
        os.kill(os.getppid(), 0)
        os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))
    except OSError:
        pass
    codes, scale, row_sum, kept = torch_path.forward(x, weight, residual, eps, element)
    codes.view(torch.uint8).zero_()
    return codes, scale, row_sum, kept
