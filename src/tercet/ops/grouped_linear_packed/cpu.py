"""grouped_linear_packed in C++ on a CPU: the packed product of each expert that has rows.

An 8-bit activation is multiplied as float32, which holds its codes exactly.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from tercet import environment
from tercet.kernel.contract import Run
from tercet.kernel.packed_call import finished, quantized
from tercet.kernel.packed_product import product_for
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
    product = product_for(isa)

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
        x, y = x.float(), torch.empty((len(x), rows), dtype=torch.float32)
        for expert, some, weight in segments(offsets, len(x), codes, scale, zero, scheme, columns):
            parts = (weight.codes, weight.scale, weight.zero)
            one = product(x[some], *parts, None, scheme, rows, columns)
            scaled = None if x_scale is None else x_scale[some]
            shared = None if bias is None else bias[expert]
            y[some] = finished(one, scaled, shared, None, torch.float32)
        return weighted(y, row_weight).to(out_dtype)

    return grouped_linear_packed
