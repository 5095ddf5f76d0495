"""Packed product: x W^T + bias in C++ on a CPU, W in rows16; what ops with packed weights stand on.

By the best instruction set of the machine, picked at run time; with threads. Each output row is
summed by one thread in a fixed order.
"""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.formats import parse_scheme
from tercet.kernel.jit.cpp import build as build_library
from tercet.packed_weight.cpu.native import NUMBERS, native_layout

Product = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, str, int, int], Tensor]
CodesProduct = Callable[..., Tensor]

_SOURCE = Path(__file__).with_name("packed_product.cpp")
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    built = build_library(_SOURCE)
    built.tercet_best_isa.argtypes = ()
    built.tercet_best_isa.restype = _I32
    built.tercet_packed_product.argtypes = (
        *(_P, _P, _P, _I32, _P, _I32, _P, _I32, _P, _P),
        *(_I32, _I64, _I32, _I32, _P),
    )
    built.tercet_packed_product.restype = None
    return built


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine can run, the best one last."""
    return environment.CPU_ISAS[: library().tercet_best_isa() + 1]


def isa_number(isa: str | None) -> int:
    """The library's number of an instruction set; None is the best one.

    UnsupportedError where the machine lacks it.
    """
    if isa is not None and isa not in isas():
        raise UnsupportedError(f"this CPU has no {isa}: it runs {', '.join(isas())}")
    return environment.CPU_ISAS.index(isa or isas()[-1])


@cache
def product_for(isa: str | None) -> Product:
    """The product for one instruction set; None is the best one.

    It takes x [..., K] in float32, float16 or bfloat16, codes, scale and zero of a PreparedWeight
    in rows16 (or whole blocks of one), bias [N] or None, scheme, N and K, and returns [..., N] in
    x's dtype. UnsupportedError where the machine lacks the instruction set.
    """
    code = isa_number(isa)
    native = library().tercet_packed_product
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
            None,
        )
        return y

    return product


@cache
def codes_product_for(isa: str | None) -> CodesProduct:
    """The product of int8 codes for one instruction set, for elements whose levels are integers.

    y = fma(sum over groups of scale * (exact sum - zero * sum of codes), x_scale, bias), rounded to
    out_dtype: with one scale a row, the bits of `linear_qat` and of the GPU's kernels.

    It takes x codes [..., K] int8, x_scale [...] float32, codes, scale and zero of a PreparedWeight
    in rows16, bias [N] or None, scheme, N, K and out_dtype, and returns [..., N].
    """
    code = isa_number(isa)
    native = library().tercet_packed_product

    def product(
        x: Tensor,
        x_scale: Tensor,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
        out_dtype: torch.dtype,
    ) -> Tensor:
        y = torch.empty((*x.shape[:-1], rows), dtype=out_dtype)
        count = y.numel() // rows if rows else 0
        if not count:
            return y
        x, x_scale = x.contiguous(), x_scale.contiguous()
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
            NUMBERS[out_dtype],
            count,
            torch.get_num_threads(),
            code,
            x_scale.data_ptr(),
        )
        return y

    return product


@cache
def has_integer_levels(scheme: str) -> bool:
    """Whether products of codes with weights of this scheme are exact sums of integers."""
    return parse_scheme(scheme).element.integer
