"""swiglu_quantized of few long rows of 16-bit floats on Hopper, in CUDA C++: a cluster takes a row.

Rows that one block holds, many rows, ones of which a cluster holds not all, and those that 16-byte
loads do not take are computed by triton.py.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows
from tercet.ops.swiglu_quantized import triton
from tercet.packed_weight.row_codes import Quantized, empty

_BUILD = Build(Path(__file__).parent / "kernel.cu")
BUILDS = (_BUILD,)
_DTYPES = (torch.bfloat16, torch.float16)
_LOAD = 16  # bytes
_CODES = 8  # bytes of a store
_MOST_ROWS = 64
# columns: more than one block holds, and what eight blocks of 256 threads hold
_FEWEST, _MOST = 16385, 65536


class Task(ctypes.Structure):
    """Mirrors `struct Task` of kernel.cu, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate", "up", "codes", "scale", "row_sum")),
        *((name, ctypes.c_int64) for name in ("gate_stride", "up_stride")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "half", "fp8")),
    )


@cache
def library() -> ctypes.CDLL:
    """The library of kernel.cu. BuildError where it cannot be."""
    found = _BUILD.load()
    found.tercet_swiglu_quantized.argtypes = (ctypes.POINTER(Task), ctypes.c_void_p)
    return found


def build() -> None:
    """Builds the library, BuildError where it cannot."""
    library()


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    rows = as_rows(gate)
    first, second = (rows, as_rows(up)) if up is not None else rows.tensor_split(2, 1)
    m, n = first.shape
    taken = (
        0 < m <= _MOST_ROWS
        and _FEWEST <= n <= _MOST
        and not n % _CODES
        and gate.dtype in _DTYPES
        and _whole(first)
        and _whole(second)
    )
    if not taken:
        return triton.forward(gate, up, element)
    codes, scale, row_sum = empty(torch.Size((*gate.shape[:-1], n)), element, gate.device)
    task = Task(
        first.data_ptr(), second.data_ptr(), codes.data_ptr(), scale.data_ptr(),
        row_sum.data_ptr(), first.stride(0), second.stride(0), m, n,
        gate.dtype == torch.float16, element != "int8",
    )  # fmt: skip
    check_launch(
        library().tercet_swiglu_quantized(ctypes.byref(task), stream()), "swiglu_quantized"
    )
    return codes, scale, row_sum


def _whole(rows: Tensor) -> bool:
    """Whether loads of 16 bytes take it."""
    apart = rows.stride(0) * rows.element_size() if len(rows) > 1 else 0
    return rows.stride(1) == 1 and not (rows.data_ptr() | apart) % _LOAD
