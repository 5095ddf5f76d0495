"""linear_packed in C++: rows16 codes, AVX-512, AVX2 or portable, with threads.

int8 activations and integer elements: exact sums, scaled once (`codes_product_for`). Codes of other
elements are multiplied as float32, which holds them exactly.
"""

from functools import cache

import torch
from torch import Tensor

from tercet import environment
from tercet.kernel.contract import Run
from tercet.packed_weight.call import PackedCall, apply_epilogue, quantize_input
from tercet.packed_weight.cpu.product import (
    codes_product_for,
    has_integer_levels,
    isas,
    product_for,
)

__all__ = ["build", "for_isa", "forward", "isas"]


def build() -> None:
    """Compiles the library. BuildError where it cannot be built."""
    for_isa(environment.cpu_isa())


def forward(call: PackedCall) -> Tensor:
    """On the machine's best instruction set, or the one TERCET_CPU_ISA names."""
    return for_isa(environment.cpu_isa())(call)


@cache
def for_isa(isa: str | None) -> Run:
    """linear_packed for one instruction set; None is the best one.

    UnsupportedError where the machine lacks it.
    """
    product, product_of_codes = product_for(isa), codes_product_for(isa)

    def linear_packed(call: PackedCall) -> Tensor:
        x, weight, out_dtype, residual = call.x, call.weight, call.out_dtype, call.residual
        parts, described = (weight.codes, weight.scale, weight.zero), (weight.scheme, *weight.shape)
        if call.activation == "none" and residual is None and out_dtype == x.dtype:
            return product(x, *parts, call.bias, *described)
        x, x_scale = quantize_input(x, call.x_scale, call.activation)
        if call.activation == "int8" and x_scale is not None and has_integer_levels(weight.scheme):
            narrow = out_dtype if residual is None else torch.float32
            y = product_of_codes(x, x_scale, *parts, call.bias, *described, narrow)
            return y if residual is None else apply_epilogue(y, None, None, residual, out_dtype)
        # codes are exact in float32: their scale, bias and residual follow the product
        y = product(x.float(), *parts, None, *described)
        return apply_epilogue(y, x_scale, call.bias, residual, out_dtype)

    return linear_packed
