"""grouped_linear_packed in CUDA C++ for Hopper, int8 activations: experts_launch.cuh, wide.py.

Its `forward` takes bfloat16 too, for cuda_float. What copies of 16 bytes do not take, and what has
no rows, is computed by triton.py.
"""

import ctypes
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.cuda import build_cuda, launched, stream
from tercet.kernel.device.codes_product import can_be_copied
from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.native import NUMBERS, number, pointer
from tercet.kernel.rows16 import layout_of
from tercet.kernel.stacked import expert_blocks
from tercet.ops.grouped_linear_packed import triton, wide
from tercet.ops.grouped_linear_packed.arguments import sizes_of
from tercet.ops.grouped_linear_packed.task import Cut, Task

SOURCES = ("experts_int8.cu", "experts_wide_int8.cu")
# rows of an expert, on average: above them tiles of 48 (and up to wide.FEW experts_few.cuh)
_MANY = 26
# of experts_few: bytes of x, and others; blocks of a multiprocessor, least and most where all run
# at once; row-blocks of W of a block where not all do, and most where they do, as experts_few.cuh
_FEW_X, _OUT, _RESIDENT, _PART_BLOCKS, _MOST_BLOCKS = 64 * 1024, 4096, (4, 5), 24, 32
_SHARED, _OF_BLOCK = 228 * 1024, 1024  # bytes of a multiprocessor; of each block, its own
_CROWD = 0.02  # what another block of a multiprocessor costs, as measured on an H200
_AHEAD = 2048  # bytes of a row-block that are asked for before the offsets are known


@cache
def library(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8 or bfloat16; BuildError where there is none."""
    found = build_cuda(Path(__file__).parent / f"experts_{str(x_dtype)[6:]}.cu")
    found.tercet_experts.argtypes = (
        ctypes.POINTER(Task), ctypes.POINTER(Cut), ctypes.c_void_p,
    )  # fmt: skip
    return found


def build() -> None:
    """Builds the libraries. BuildError where they cannot be built."""
    build_for(torch.int8)


def build_for(x_dtype: torch.dtype) -> None:
    """Those of one type of x."""
    library(x_dtype)
    if wide.fits_this_gpu():
        wide.library(x_dtype)


def forward(
    x: Tensor, offsets: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None,
    bias: Tensor | None, row_weight: Tensor | None, x_scale: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.grouped_linear_packed, on weights in fragments with a scale a row."""
    y = torch.empty((len(x), rows), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    if activation == "int8" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, activation)
    flat = as_rows(x)
    if not can_be_copied(flat):
        return triton.forward(
            x, offsets, codes, scale, zero, bias, row_weight, x_scale,
            scheme, rows, columns, activation, out_dtype,
        )  # fmt: skip
    layout, sizes = layout_of(scheme, rows, columns), sizes_of(x, offsets, rows, columns)
    offsets = offsets.contiguous()
    bias, row_weight, x_scale = (
        each.contiguous() if each is not None else None for each in (bias, row_weight, x_scale)
    )
    task = Task(
        codes=codes.data_ptr(),
        scale=scale.data_ptr(),
        offsets=offsets.data_ptr(),
        x=flat.data_ptr(),
        x_scale=pointer(x_scale),
        row_weight=pointer(row_weight),
        bias=pointer(bias),
        y=y.data_ptr(),
        x_pitch=flat.stride(0) * flat.element_size(),
        count=sizes["T"],
        experts=sizes["E"],
        n=rows,
        k=columns,
        blocks=expert_blocks(rows),
        units=codes.shape[1],
        scale_type=NUMBERS[scale.dtype],
        bias_type=number(bias),
        y_type=NUMBERS[out_dtype],
        factor=factor(flat.dtype, layout.bits),
    )
    processors = multiprocessors(x.device)
    if wide.takes(sizes, y):
        status = wide.launch(task, flat.dtype, layout.bits, wide.tile_rows(sizes), processors)
    else:
        cut = cut_for(sizes, flat.element_size(), layout.bits, processors)
        status = library(flat.dtype).tercet_experts(ctypes.byref(task), ctypes.byref(cut), stream())
    launched(status, "grouped_linear_packed")
    return y


def factor(dtype: torch.dtype, bits: int) -> float:
    """Codes are decoded to the top of a byte; as floats, ternary ones to twice their value."""
    if dtype == torch.int8:
        return 2.0 ** -(8 - bits)
    return 0.5 if bits == 2 else 1.0


def cut_for(sizes: Mapping[str, int], x_bytes: int, bits: int, processors: int) -> Cut:
    """Tiles that hold the rows of most experts; for few rows, blocks that all run at once.

    Args:
        sizes: T rows of x, E experts, W [N, K] of each.
        x_bytes: of an element of x as it is multiplied.
        bits: of a code.
        processors: multiprocessors of the GPU.
    """
    each, row = sizes["T"] / sizes["E"], sizes["K"] * x_bytes
    if each > wide.FEW or row > 3 * _FEW_X:
        rows = 48 if each > _MANY else 32
        return Cut(bits=bits, rows=rows, most_tiles=triton.token_tiles(sizes, rows))
    rows = max(1, min(8, _FEW_X // row))
    fit = max(1, min(_RESIDENT[1], (_SHARED - _OF_BLOCK) // (rows * row + _OUT)))
    resident = residents(sizes["E"], each, expert_blocks(sizes["N"]), fit, processors)
    return Cut(
        bits=bits,
        rows=rows,
        most_tiles=triton.token_tiles(sizes, rows),
        part_blocks=0 if resident else _PART_BLOCKS,
        slots=(resident or fit) * processors,
        shared=0 if resident in (0, fit) else _SHARED // (resident + 1) - _OF_BLOCK + 16,
        ahead=_ahead(sizes["K"], bits) if resident and each >= 1 and x_bytes == 1 else 0,
    )


def residents(experts: int, each: float, blocks: int, fit: int, processors: int) -> int:
    """Blocks a multiprocessor that give it the fewest row-blocks; 0 if not all run at once.

    Args:
        experts: of the layer.
        each: rows of an expert on average, if all are as likely.
        blocks: row-blocks of an expert.
        fit: blocks of a multiprocessor that there is room for.
        processors: multiprocessors.
    """
    none = math.exp(-each)  # of an expert to have no rows
    spread = math.sqrt(max(0.0, experts * none * (1.0 - none * (1.0 + each))))
    used = [max(1.0, experts * (1.0 - none) + by * spread) for by in (-1.0, 0.0, 1.0)]
    if used[1] * -(-blocks // _MOST_BLOCKS) > fit * processors:
        return 0

    def cost(resident: int) -> float:
        parts = (max(1, int(resident * processors / tiles)) for tiles in used)
        return sum(-(-blocks // part) for part in parts) * resident * (1.0 + _CROWD * resident)

    return min(range(min(_RESIDENT[0], fit), fit + 1), key=cost)


def _ahead(columns: int, bits: int) -> int:
    """Bytes to ask for ahead: of a row-block, 16 a lane and unit."""
    return min(_AHEAD, -(-columns * bits // 256) * 512)
