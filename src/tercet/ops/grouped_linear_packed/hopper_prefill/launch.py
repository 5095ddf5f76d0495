"""Experts of many rows on Hopper, their products by wgmma: kernel.cuh."""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, stream
from tercet.kernel.requirement import Requirement, gpu_capability
from tercet.ops.grouped_linear_packed.hopper_prefill.plan import FEW, MOST_EXPERTS
from tercet.ops.grouped_linear_packed.task import Task

_X = {torch.int8: "INT8", torch.bfloat16: "BFLOAT16"}
# its wgmma is of this compute capability alone
_REQUIREMENT = Requirement(dtypes=tuple(_X), architecture=(9, 0))


def build_of(x_dtype: torch.dtype) -> Build:
    """What is compiled for products in int8 or bfloat16."""
    return Build(Path(__file__).parent / "kernel.cu", {"TERCET_X": _X[x_dtype]})


@cache
def library(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8 or bfloat16; BuildError where there is none."""
    found = build_of(x_dtype).load()
    found.tercet_experts_wide.argtypes = (
        ctypes.POINTER(Task), *(ctypes.c_int,) * 3, ctypes.c_void_p,
    )  # fmt: skip
    return found


@cache
def fits_this_gpu() -> bool:
    """Whether it has this wgmma."""
    return _REQUIREMENT.unmet_by(gpu_capability()) is None


def takes(sizes: Mapping[str, int], y: Tensor) -> bool:
    """Whether a call has enough rows for it, few enough experts, and y [T, N] of 16-byte pieces."""
    return (
        sizes["T"] > FEW * sizes["E"]
        and sizes["E"] <= MOST_EXPERTS
        and sizes["N"] % 8 == 0
        and y.element_size() == 2
        and fits_this_gpu()
    )


def launch(task: Task, x_dtype: torch.dtype, bits: int, rows: int, blocks: int) -> int:
    """Its tiles of `rows` rows of x go round `blocks` blocks; a cudaError_t."""
    found = library(x_dtype)
    return found.tercet_experts_wide(ctypes.byref(task), bits, rows, blocks, stream())
