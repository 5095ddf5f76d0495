"""grouped_linear_packed in C++ on a CPU: the packed product of each expert that has rows.

int8 activations and integer elements: exact sums, scaled once (`codes_product_for`). Codes of other
elements are multiplied as float32, which holds them exactly.
"""

from functools import cache

import torch
from torch import Tensor

from tercet import environment
from tercet.kernel.contract import Run
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.torch_path import segments, weighted
from tercet.packed_weight.call import apply_epilogue, quantize_input
from tercet.packed_weight.cpu.product import codes_product_for, has_integer_levels, product_for


def build() -> None:
    """Compiles the library. BuildError where it cannot be built."""
    for_isa(environment.cpu_isa())


def forward(call: GroupedCall) -> Tensor:
    """On the machine's best instruction set, or the one TERCET_CPU_ISA names."""
    return for_isa(environment.cpu_isa())(call)


@cache
def for_isa(isa: str | None) -> Run:
    """grouped_linear_packed for one instruction set; None is the best one."""
    product, product_of_codes = product_for(isa), codes_product_for(isa)

    def grouped_linear_packed(call: GroupedCall) -> Tensor:
        scheme, bias, rows = call.weight.scheme, call.bias, call.weight.shape[1]
        x, x_scale = quantize_input(call.x, call.x_scale, call.activation)
        exact = call.activation == "int8" and has_integer_levels(scheme)
        y = torch.empty((len(x), rows), dtype=torch.float32)
        for expert, some, weight in segments(call.offsets, len(x), call.weight):
            parts, described = (weight.codes, weight.scale, weight.zero), (scheme, *weight.shape)
            shared = None if bias is None else bias[expert]
            scaled = None if x_scale is None else x_scale[some]
            if exact:
                y[some] = product_of_codes(
                    x[some], scaled, *parts, shared, *described, torch.float32
                )
                continue
            one = product(x[some].float(), *parts, None, *described)
            y[some] = apply_epilogue(one, scaled, shared, None, torch.float32)
        return weighted(y, call.row_weight).to(call.out_dtype)

    return grouped_linear_packed
