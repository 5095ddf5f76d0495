"""linear_packed in C++: rows16 codes, AVX-512, AVX2 or portable, with threads.

int8 activations and integer elements: exact sums, scaled once (`codes_product_for`). Codes of other
elements are multiplied as float32, which holds them exactly.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from tercet import environment
from tercet.kernel.contract import Run
from tercet.kernel.packed_call import finished, quantized
from tercet.kernel.packed_product import codes_product_for, has_integer_levels, isas, product_for

__all__ = ["build", "for_isa", "forward", "isas"]


def build() -> None:
    """Compiles the library. BuildError where it cannot be built."""
    for_isa(environment.cpu_isa())


def forward(*arguments: Any) -> Tensor:
    """On the machine's best instruction set, or the one TERCET_CPU_ISA names."""
    return for_isa(environment.cpu_isa())(*arguments)


@cache
def for_isa(isa: str | None) -> Run:
    """linear_packed for one instruction set; None is the best one.

    UnsupportedError where the machine lacks it.
    """
    product, product_of_codes = product_for(isa), codes_product_for(isa)

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
        x, x_scale = quantized(x, x_scale, activation)
        if activation == "int8" and x_scale is not None and has_integer_levels(scheme):
            narrow = out_dtype if residual is None else torch.float32
            parts = (codes, scale, zero, bias, scheme, rows, columns)
            y = product_of_codes(x, x_scale, *parts, narrow)
            return y if residual is None else finished(y, None, None, residual, out_dtype)
        # codes are exact in float32: their scale, bias and residual follow the product
        y = product(x.float(), codes, scale, zero, None, scheme, rows, columns)
        return finished(y, x_scale, bias, residual, out_dtype)

    return linear_packed
