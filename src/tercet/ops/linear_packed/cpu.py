"""linear_packed in C++: rows16 codes, AVX-512, AVX2 or portable, with threads.

An 8-bit activation is multiplied as float32, which holds its codes exactly.
"""

import ctypes
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.kernel.compile import build as build_library
from tercet.kernel.contract import Run
from tercet.kernel.native import NUMBERS, native_layout
from tercet.ops.linear_packed.torch_path import finished, quantized

_SOURCE = Path(__file__).parent / "linear_packed.cpp"
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def build() -> None:
    """Compiles the library. BuildError where it cannot be built."""
    for_isa(environment.cpu_isa())


def forward(*arguments: Any) -> Tensor:
    """On the machine's best instruction set, or the one TERCET_CPU_ISA names."""
    return for_isa(environment.cpu_isa())(*arguments)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    built = build_library(_SOURCE)
    built.tercet_best_isa.argtypes = ()
    built.tercet_best_isa.restype = _I32
    built.tercet_linear_packed.argtypes = (
        *(_P, _P, _P, _I32, _P, _I32, _P, _I32, _P, _P),
        *(_I32, _I64, _I32, _I32),
    )
    built.tercet_linear_packed.restype = None
    return built


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine can run, the best one last."""
    return environment.CPU_ISAS[: library().tercet_best_isa() + 1]


@cache
def for_isa(isa: str | None) -> Run:
    """linear_packed for one instruction set; None is the best one.

    UnsupportedError where the machine lacks it.
    """
    if isa is not None and isa not in isas():
        raise UnsupportedError(f"this CPU has no {isa}: it runs {', '.join(isas())}")
    code = environment.CPU_ISAS.index(isa or isas()[-1])
    native = library().tercet_linear_packed
    threads, empty = torch.get_num_threads, torch.empty

    # a call at the smallest shapes is mostly Python: everything that can be is bound outside of it
    def product(
        x: Tensor,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
    ) -> Tensor:
        shape, dtype = x.shape, x.dtype
        y = empty((*shape[:-1], rows), dtype=dtype)
        count = y.numel() // rows if rows else 0
        if not count:
            return y
        x = x.contiguous()
        if bias is not None:
            bias = bias.contiguous()
        native(
            native_layout(scheme, rows, columns)[0],
            codes.data_ptr(),
            scale.data_ptr(),
            NUMBERS[scale.dtype],
            zero.data_ptr() if zero is not None else None,
            NUMBERS[zero.dtype] if zero is not None else 0,
            bias.data_ptr() if bias is not None else None,
            NUMBERS[bias.dtype] if bias is not None else 0,
            x.data_ptr(),
            y.data_ptr(),
            NUMBERS[dtype],
            count,
            threads(),
            code,
        )
        return y

    def linear_packed(
        x: Tensor,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        x_scale: Tensor | None,
        x_sum: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
        activation: str,
        out_dtype: torch.dtype,
    ) -> Tensor:
        del x_sum
        if activation == "none" and residual is None and out_dtype == x.dtype:
            return product(x, codes, scale, zero, bias, scheme, rows, columns)
        # codes are exact in float32: their scale, bias and residual follow the product
        x, x_scale = quantized(x, x_scale, activation)
        y = product(x.float(), codes, scale, zero, None, scheme, rows, columns)
        return finished(y, x_scale, bias, residual, out_dtype)

    return linear_packed
