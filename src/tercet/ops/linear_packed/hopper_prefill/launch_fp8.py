"""linear_packed for many tokens on Hopper, codes of x in fp8_e4m3: mainloop_fp8.cuh.

Weights in fp8_e4m3, and ternary ones, are multiplied as fp8_e4m3. The tensor cores keep 14 bits of
such sums: they are begun anew every 64 columns and added in float32. fp8_sums has what they may
lose; results of other dtypes than bfloat16 are hopper_prefill_float's.
"""

import torch

from tercet.ops.linear_packed.hopper_prefill import launch as hopper_prefill
from tercet.ops.linear_packed.hopper_prefill.launch import forward

__all__ = ["BUILDS", "build", "forward"]

BUILDS = tuple(hopper_prefill.build_of(codes, torch.float8_e4m3fn) for codes in (2, "fp8_e4m3"))


def build() -> None:
    """Builds the library of ternary codes; that of fp8_e4m3 follows when a weight needs it.

    Raises:
        BuildError: where it cannot be built.
    """
    hopper_prefill.library_of(2, torch.float8_e4m3fn)
