"""embedding_packed in C++."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.jit.cpp import build as build_library
from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.cpu.native import NUMBERS, native_layout
from tercet.packed_weight.weight import PreparedWeight

_SOURCE = Path(__file__).parent / "embedding_packed.cpp"
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def build() -> Any:
    """The compiled function. BuildError where it cannot be built."""
    native = build_library(_SOURCE).tercet_embedding_packed
    native.argtypes = (_P, _P, _P, _I32, _P, _I32, _P, _I64, _P, _I32)
    native.restype = _I64
    return native


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in rows16."""
    (rows, columns), scale, zero = weight.shape, weight.scale, weight.zero
    y = torch.empty((*ids.shape, columns), dtype=dtype)
    wanted = ids.to(torch.int64).contiguous()
    wrong = build()(
        native_layout(weight.scheme, rows, columns)[0],
        weight.codes.data_ptr(),
        scale.data_ptr(),
        NUMBERS[scale.dtype],
        zero.data_ptr() if zero is not None else None,
        NUMBERS[zero.dtype] if zero is not None else 0,
        wanted.data_ptr(),
        wanted.numel(),
        y.data_ptr(),
        NUMBERS[dtype],
    )
    if wrong >= 0:
        raise out_of_range(int(wanted.view(-1)[wrong]), wrong, rows)
    return y
