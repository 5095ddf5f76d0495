"""linear_packed for many tokens on Hopper, x in bfloat16 or float16: prefill_kernel.cuh.

Codes become numbers of x's type in registers, and products are summed in float32.
"""

import torch

from tercet.ops.linear_packed import cuda_wgmma

SOURCES = tuple(f"prefill_{bits}_{x}.cu" for bits in (2, 4) for x in ("bfloat16", "float16"))
forward = cuda_wgmma.forward


def build() -> None:
    """Builds the library of 2-bit codes and bfloat16; others follow when a call needs them.

    Raises:
        BuildError: where it cannot be built, and on a GPU other than Hopper's.
    """
    cuda_wgmma.build(torch.bfloat16)
