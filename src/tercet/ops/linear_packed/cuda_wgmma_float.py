"""linear_packed for many tokens on Hopper, x in bfloat16 or float16: prefill_kernel.cuh.

Codes become numbers of x's type in registers, and products are summed in float32. fp8 codes of x
become float16 ahead, exactly.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.cuda import build_cuda, launched, stream
from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.launch import as_rows
from tercet.ops.linear_packed import cuda_wgmma

_WIDENING = "fp8_as_float16.cu"
SOURCES = (
    *(
        f"prefill_{codes}_{x}.cu"
        for codes in ("2", "4", "fp8_e4m3", "fp8_e5m2")
        for x in ("bfloat16", "float16")
    ),
    _WIDENING,
)
_WIDTH = 8  # columns a thread converts


def build() -> None:
    """Builds the library of 2-bit codes and bfloat16; others follow when a call needs them.

    Raises:
        BuildError: where it cannot be built, and on a GPU other than Hopper's.
    """
    cuda_wgmma.build(torch.bfloat16)


def forward(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, x_scale: Tensor | None, x_sum: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.linear_packed, on a weight in fragments."""
    if activation != "none" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, activation)
    return cuda_wgmma.forward(
        as_float16(x) if activation != "none" else x, codes, scale, zero, bias, residual,
        x_scale, x_sum, scheme, rows, columns, activation, out_dtype,
    )  # fmt: skip


def as_float16(x: Tensor) -> Tensor:
    """float8_e4m3fn x [..., K] as float16, exactly, each row beginning at 16 bytes."""
    rows = as_rows(x)
    m, k = rows.shape
    y = torch.empty((m, -(-k // _WIDTH) * _WIDTH), dtype=torch.float16, device=x.device)
    status = _library().tercet_fp8_as_float16(
        rows.data_ptr(), rows.stride(0), y.data_ptr(), y.stride(0), m, k, stream()
    )
    launched(status, "linear_packed")
    return y.view(*x.shape[:-1], -1)[..., :k]


@cache
def _library() -> ctypes.CDLL:
    library = build_cuda(Path(__file__).parent / _WIDENING)
    pointer, pitch, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.tercet_fp8_as_float16.argtypes = (
        *(pointer, pitch, pointer, pitch, size, size, pointer),
    )
    return library
