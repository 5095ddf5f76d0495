"""Native: how Python hands tensors to the C++ kernels of packed_weight/cpu/rows16.hpp."""

import ctypes
from functools import cache

import torch
from torch import Tensor

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.packed_weight.rows16 import layout_of

NUMBERS: dict[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# of base 256, which hold a number of x
_DIGITS = {"float32": 3, "int16": 2, "int8": 1}


def pointer(tensor: Tensor | None) -> int | None:
    """The address of its first element; None for none."""
    return None if tensor is None else tensor.data_ptr()


def number(tensor: Tensor | None) -> int:
    """Of its dtype, by NUMBERS; 0 for none, whose dtype nothing reads."""
    return 0 if tensor is None else NUMBERS[tensor.dtype]


class NativeLayout(ctypes.Structure):
    """Mirrors `struct Layout` of rows16.hpp, field by field."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("runs_per_group", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("is_signed", ctypes.c_int32),
        ("levels", ctypes.c_float * 256),
        ("lowest", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("digits", ctypes.c_int32),
    )


def native_layout(scheme: str, rows: int, columns: int) -> tuple[int, NativeLayout]:
    """The address of the layout, and the layout itself, which a cache keeps alive."""
    return _native_layout(scheme, rows, columns, _DIGITS[environment.cpu_activations()])


@cache
def _native_layout(scheme: str, rows: int, columns: int, digits: int) -> tuple[int, NativeLayout]:
    layout = layout_of(scheme, rows, columns)
    element = layout.element
    native = NativeLayout(
        rows=rows,
        columns=columns,
        group=layout.group,
        groups=layout.groups,
        runs_per_group=layout.runs_per_group,
        bits=layout.bits,
        is_signed=layout.is_signed,
        levels=(ctypes.c_float * 256)(*layout.levels().tolist()),
        lowest=int(element.lowest) if element.integer else 0,
        count=len(element.levels) if element.integer else 0,
        digits=digits,
    )
    return ctypes.addressof(native), native


def number_of(dtype: torch.dtype) -> int:
    """The C++ code of a dtype; UnsupportedError for one that the kernels do not take."""
    if dtype not in NUMBERS:
        raise UnsupportedError(f"{dtype}: allowed are {', '.join(str(one) for one in NUMBERS)}")
    return NUMBERS[dtype]
