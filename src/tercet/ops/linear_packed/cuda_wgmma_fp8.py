"""linear_packed for many tokens on Hopper, codes of x in fp8_e4m3: prefill_promoted.cuh.

Weights in fp8_e4m3, and ternary ones, are multiplied as fp8_e4m3. The tensor cores keep 14 bits of
such sums: they are begun anew every 64 columns and added in float32. fp8_sums has what they may
lose; results of other dtypes than bfloat16 are cuda_wgmma_float's.
"""

import torch

from tercet.ops.linear_packed import cuda_wgmma
from tercet.ops.linear_packed.cuda_wgmma import forward

__all__ = ["SOURCES", "build", "forward"]

SOURCES = ("prefill_2_float8_e4m3fn.cu", "prefill_fp8_e4m3_float8_e4m3fn.cu")


def build() -> None:
    """Builds the library of ternary codes; that of fp8_e4m3 follows when a weight needs it.

    Raises:
        BuildError: where it cannot be built, and on a GPU other than Hopper's.
    """
    cuda_wgmma.build(torch.float8_e4m3fn)
