"""grouped_linear_packed in C++ on a CPU: the packed product of each expert that has rows.

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
from tercet.kernel.packed_product import codes_product_for, has_integer_levels, product_for
from tercet.ops.grouped_linear_packed.torch_path import segments, weighted


def build() -> None:
    """Compiles the library. BuildError where it cannot be built."""
    for_isa(environment.cpu_isa())


def forward(*arguments: Any) -> Tensor:
    """On the machine's best instruction set, or the one TERCET_CPU_ISA names."""
    return for_isa(environment.cpu_isa())(*arguments)


@cache
def for_isa(isa: str | None) -> Run:
    """grouped_linear_packed for one instruction set; None is the best one."""
    product, product_of_codes = product_for(isa), codes_product_for(isa)

    def grouped_linear_packed(
        x: Tensor,
        offsets: Tensor,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        row_weight: Tensor | None,
        x_scale: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
        activation: str,
        out_dtype: torch.dtype,
    ) -> Tensor:
        x, x_scale = quantized(x, x_scale, activation)
        exact = activation == "int8" and has_integer_levels(scheme)
        y = torch.empty((len(x), rows), dtype=torch.float32)
        for expert, some, weight in segments(offsets, len(x), codes, scale, zero, scheme, columns):
            parts = (weight.codes, weight.scale, weight.zero)
            shared = None if bias is None else bias[expert]
            scaled = None if x_scale is None else x_scale[some]
            if exact:
                y[some] = product_of_codes(
                    x[some], scaled, *parts, shared, scheme, rows, columns, torch.float32
                )
                continue
            one = product(x[some].float(), *parts, None, scheme, rows, columns)
            y[some] = finished(one, scaled, shared, None, torch.float32)
        return weighted(y, row_weight).to(out_dtype)

    return grouped_linear_packed
