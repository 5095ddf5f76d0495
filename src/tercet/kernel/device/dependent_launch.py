"""Programmatic dependent launch of Triton kernels: a kernel begins while the one before it ends.

In a chain of kernels of a few microseconds, starting one costs about as much as it computes. A
kernel that calls `begin` first lets the next one start at once and waits for the one before: what
is launched so, reads nothing of the previous kernel's before its own `begin`. A kernel that is not
launched so waits as ever. Hopper and later (CUDA C++ Programming Guide, "Programmatic Dependent
Launch"); elsewhere `begin` is nothing.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tercet.kernel.interpreter.corrections import interpreting


@triton.jit
def begin(PDL: tl.constexpr):
    """Before a kernel's first load or store."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def dependent_launch(device: torch.device) -> dict[str, Any]:
    """The launch options of a kernel that calls `begin(PDL)`."""
    if device.type == "cuda" and not interpreting() and _can(device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@cache
def _can(index: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(index) >= (9, 0)
