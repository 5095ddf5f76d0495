"""Experts of many rows on Hopper, their products by wgmma: experts_wide.cuh."""

import ctypes
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.cuda import build_cuda, stream
from tercet.ops.grouped_linear_packed.task import Task

# rows of x a tile, as in launch_rows, and what a tile takes on an H200, as measured, of that of 128
TILES = {32: 0.46, 48: 0.51, 64: 0.57, 128: 1.0}
MOST_EXPERTS = 512
FEW = 4  # rows of an expert, on average: above them
_HOPPER = (9, 0)


@cache
def library(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8 or bfloat16; BuildError where there is none."""
    found = build_cuda(Path(__file__).parent / f"experts_wide_{str(x_dtype)[6:]}.cu")
    found.tercet_experts_wide.argtypes = (
        ctypes.POINTER(Task), *(ctypes.c_int,) * 3, ctypes.c_void_p,
    )  # fmt: skip
    return found


@cache
def fits_this_gpu() -> bool:
    """Whether it has this wgmma, which is of compute capability 9.0 alone."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == _HOPPER


def takes(sizes: Mapping[str, int], y: Tensor) -> bool:
    """Whether a call has enough rows for it, few enough experts, and y [T, N] of 16-byte pieces."""
    return (
        sizes["T"] > FEW * sizes["E"]
        and sizes["E"] <= MOST_EXPERTS
        and sizes["N"] % 8 == 0
        and y.element_size() == 2
        and fits_this_gpu()
    )


def tile_rows(sizes: Mapping[str, int]) -> int:
    """Rows of a tile, if T rows come to E experts by chance: one tile holds the rows of nearly any
    expert, or half of an expert's last one is empty."""
    each = sizes["T"] / sizes["E"]
    most = each + 2 * math.sqrt(each)

    def cost(rows: int) -> float:
        return TILES[rows] * (1.0 if most <= rows else each / rows + 0.5)

    return min(TILES, key=cost)


def launch(task: Task, x_dtype: torch.dtype, bits: int, rows: int, blocks: int) -> int:
    """Its tiles of `rows` rows of x go round `blocks` blocks; a cudaError_t."""
    found = library(x_dtype)
    return found.tercet_experts_wide(ctypes.byref(task), bits, rows, blocks, stream())
