"""x of fp8 codes as float16: fp8.cu."""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows

_WIDENING = Build(Path(__file__).parent / "fp8.cu")
BUILDS = (_WIDENING,)
_WIDTH = 8  # columns a thread converts


def of_fp8(x: Tensor) -> Tensor:
    """float8_e4m3fn x [..., K] as float16, exactly, each row beginning at 16 bytes."""
    rows = as_rows(x)
    m, k = rows.shape
    y = torch.empty((m, -(-k // _WIDTH) * _WIDTH), dtype=torch.float16, device=x.device)
    status = _widening().tercet_fp8_as_float16(
        rows.data_ptr(), rows.stride(0), y.data_ptr(), y.stride(0), m, k, stream()
    )
    check_launch(status, "linear_packed")
    return y.view(*x.shape[:-1], -1)[..., :k]


@cache
def _widening() -> ctypes.CDLL:
    library = _WIDENING.load()
    pointer, pitch, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.tercet_fp8_as_float16.argtypes = (
        *(pointer, pitch, pointer, pitch, size, size, pointer),
    )
    return library
