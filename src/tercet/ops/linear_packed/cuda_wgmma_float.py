"""linear_packed for many tokens on Hopper, x in bfloat16 or float16: prefill_kernel.cuh.

Codes become numbers of x's type in registers, and products are summed in float32. fp8 codes of x
become float16 ahead, exactly.
"""

import torch
from torch import Tensor

from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.ops.linear_packed import cuda_wgmma

SOURCES = tuple(
    f"prefill_{codes}_{x}.cu"
    for codes in ("2", "4", "fp8_e4m3", "fp8_e5m2")
    for x in ("bfloat16", "float16")
)


def build() -> None:
    """Builds the library of 2-bit codes and bfloat16; others follow when a call needs them.

    Raises:
        BuildError: where it cannot be built, and on a GPU other than Hopper's.
    """
    cuda_wgmma.build(torch.bfloat16)


def forward(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, x_scale: Tensor | None, x_sum: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.linear_packed, on a weight in fragments."""
    if activation != "none" and x_scale is None:
        x, x_scale, _ = quantize_rows(x, activation)
    return cuda_wgmma.forward(
        x.to(torch.float16) if activation != "none" else x, codes, scale, zero, bias, residual,
        x_scale, x_sum, scheme, rows, columns, activation, out_dtype,
    )  # fmt: skip
