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
# of experts_few: bytes of x, and others; blocks of a multiprocessor; least and most row-blocks of W
# of a block
_FEW_X, _OUT, _RESIDENT, _PARTS = 64 * 1024, 4096, 5, (4, 24)
_SHARED = 227 * 1024


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
    each, blocks = sizes["T"] / sizes["E"], expert_blocks(sizes["N"])
    rows, part = 48 if each > _MANY else 32, 0
    row = sizes["K"] * x_bytes
    if each <= wide.FEW and row <= 3 * _FEW_X:
        rows = max(1, min(8, _FEW_X // row))
        fit = processors * max(1, min(_RESIDENT, _SHARED // (rows * row + _OUT)))
        part = part_blocks(sizes["E"], each, blocks, fit)
    return Cut(bits=bits, rows=rows, most_tiles=triton.token_tiles(sizes, rows), part_blocks=part)


def part_blocks(experts: int, each: float, blocks: int, fit: int) -> int:
    """Row-blocks of W of a block, so that as many blocks as possible run, and all of them at once.

    Args:
        experts: of the layer.
        each: rows of an expert on average, if all are as likely.
        blocks: row-blocks of an expert.
        fit: blocks that run at once.
    """
    none = math.exp(-each)  # of an expert to have no rows
    spread = math.sqrt(max(0.0, experts * none * (1.0 - none * (1.0 + each))))
    parts = max(1, int(fit / (experts * (1.0 - none) + 2.0 * spread)))
    least, most = _PARTS
    return min(max(-(-blocks // parts), least), most)
