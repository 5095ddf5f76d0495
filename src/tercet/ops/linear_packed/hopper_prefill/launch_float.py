"""linear_packed for many tokens on Hopper, x in bfloat16 or float16: kernel.cuh.

Codes become numbers of x's type in registers, and products are summed in float32. fp8 codes of x
become float16 ahead, exactly.
"""

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows
from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.hopper_prefill import launch as hopper_prefill
from tercet.packed_weight.call import PackedCall
from tercet.packed_weight.triton.quantize_rows import quantize_rows

_WIDENING = Build(Path(__file__).parent / "fp8_to_float16.cu")
BUILDS = (
    *(
        hopper_prefill.build_of(codes, x)
        for codes in (2, 4, *FLOAT_ELEMENTS)
        for x in (torch.bfloat16, torch.float16)
    ),
    _WIDENING,
)
_WIDTH = 8  # columns a thread converts


def build() -> None:
    """Builds the library of 2-bit codes and bfloat16; others follow when a call needs them.

    Raises:
        BuildError: where it cannot be built.
    """
    hopper_prefill.library_of(2, torch.bfloat16)


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in fragments."""
    if call.activation == "none":
        return hopper_prefill.forward(call)
    x, x_scale = call.x, call.x_scale
    if x_scale is None:
        x, x_scale, _ = quantize_rows(x, call.activation)
    return hopper_prefill.forward(replace(call, x=as_float16(x), x_scale=x_scale))


def as_float16(x: Tensor) -> Tensor:
    """float8_e4m3fn x [..., K] as float16, exactly, each row beginning at 16 bytes."""
    rows = as_rows(x)
    m, k = rows.shape
    y = torch.empty((m, -(-k // _WIDTH) * _WIDTH), dtype=torch.float16, device=x.device)
    status = _library().tercet_fp8_as_float16(
        rows.data_ptr(), rows.stride(0), y.data_ptr(), y.stride(0), m, k, stream()
    )
    check_launch(status, "linear_packed")
    return y.view(*x.shape[:-1], -1)[..., :k]


@cache
def _library() -> ctypes.CDLL:
    library = _WIDENING.load()
    pointer, pitch, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.tercet_fp8_as_float16.argtypes = (
        *(pointer, pitch, pointer, pitch, size, size, pointer),
    )
    return library
