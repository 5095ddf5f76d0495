"""Programmatic dependent launch of Triton kernels: a kernel begins while the one before it ends.

In a chain of kernels of a few microseconds, starting one costs about as much as it computes. A
kernel that calls `begin` first lets the next one start at once and waits for the one before: what
is launched so, reads nothing of the previous kernel's before its own `begin`. What no kernel before
it has written, weights, it may load between the two halves, `launch_dependents` and
`wait_for_previous_kernel`: they come from memory, and then while that kernel still runs. A kernel
that is not launched so waits as ever. Hopper and later (CUDA C++ Programming Guide, "Programmatic
Dependent Launch"); elsewhere `begin` is nothing.
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
    launch_dependents(PDL)
    wait_for_previous_kernel(PDL)


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Lets the next kernel start."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous_kernel(PDL: tl.constexpr):
    """Before the first load of what the previous kernel has written, and the first store."""
    if PDL:
        gdc_wait()


def dependent_launch(device: torch.device) -> dict[str, Any]:
    """The launch options of a kernel that calls `begin(PDL)`."""
    if device.type == "cuda" and not interpreting() and _can(device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@cache
def _can(index: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(index) >= (9, 0)
