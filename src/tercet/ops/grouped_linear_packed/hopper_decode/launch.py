"""grouped_linear_packed in CUDA C++ for Hopper, int8 activations: launch.cuh, and hopper_prefill.

Its `forward` takes bfloat16 too, for hopper_float. triton.py computes calls without rows, and those
that TMA does not take.
"""

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.device.codes_product import supports_tma
from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.ops.grouped_linear_packed import triton
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.hopper_decode.plan import cut_for
from tercet.ops.grouped_linear_packed.hopper_prefill import launch as wide
from tercet.ops.grouped_linear_packed.hopper_prefill.plan import tile_rows
from tercet.ops.grouped_linear_packed.task import Cut, Task
from tercet.packed_weight.cpu.native import NUMBERS, number, pointer
from tercet.packed_weight.expert_weights import expert_blocks
from tercet.packed_weight.triton.quantize_rows import quantize_rows

_X = {torch.int8: "int8_t", torch.bfloat16: "__nv_bfloat16"}


def builds_of(x_dtype: torch.dtype) -> tuple[Build, Build]:
    """What is compiled for products in int8 or bfloat16: for few rows an expert, and for many."""
    few = Build(Path(__file__).parent / "kernel.cu", {"TERCET_X": _X[x_dtype]})
    return few, wide.build_of(x_dtype)


BUILDS = builds_of(torch.int8)


@cache
def library(x_dtype: torch.dtype) -> ctypes.CDLL:
    """The library for products in int8 or bfloat16; BuildError where there is none."""
    found = builds_of(x_dtype)[0].load()
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


def forward(call: GroupedCall) -> Tensor:
    """As op.grouped_linear_packed, on weights in fragments with a scale a row."""
    x, x_scale, weight = call.x, call.x_scale, call.weight
    _, rows, columns = weight.shape
    y = torch.empty((len(x), rows), dtype=call.out_dtype, device=x.device)
    if not y.numel():
        return y
    if call.activation == "int8" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, call.activation)
    flat = as_rows(x)
    if not supports_tma(flat):
        return triton.forward(replace(call, x=x, x_scale=x_scale))
    layout, sizes = weight.sizes, call.sizes
    offsets, scale = call.offsets.contiguous(), weight.scale
    bias, row_weight, x_scale = (
        each.contiguous() if each is not None else None
        for each in (call.bias, call.row_weight, x_scale)
    )
    task = Task(
        codes=weight.codes.data_ptr(),
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
        units=weight.codes.shape[1],
        scale_type=NUMBERS[scale.dtype],
        bias_type=number(bias),
        y_type=NUMBERS[call.out_dtype],
        factor=factor(flat.dtype, layout.bits),
    )
    processors = multiprocessors(x.device)
    if wide.takes(sizes, y):
        status = wide.launch(task, flat.dtype, layout.bits, tile_rows(sizes), processors)
    else:
        cut = cut_for(sizes, flat.element_size(), layout.bits, processors)
        status = library(flat.dtype).tercet_experts(ctypes.byref(task), ctypes.byref(cut), stream())
    check_launch(status, "grouped_linear_packed")
    return y


def factor(dtype: torch.dtype, bits: int) -> float:
    """Codes are decoded to the top of a byte; as floats, ternary ones to twice their value."""
    if dtype == torch.int8:
        return 2.0 ** -(8 - bits)
    return 0.5 if bits == 2 else 1.0
